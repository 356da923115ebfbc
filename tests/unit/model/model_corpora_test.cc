// Replays the corpora of the fuzzers of model files: tests/fixtures/make_model_file_corpora.py made them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "tests/fuzz/folder_exercise.h"
#include "tests/support/gguf_builder.h"

namespace kvblend::model {
namespace {

using test_support::Bytes;
using ::testing::HasSubstr;

// What `exercise` says to each file of a corpus, by name.
std::map<std::string, absl::Status> Replay(const std::string& corpus,
                                           absl::Status (*exercise)(absl::Span<const std::byte>)) {
  std::map<std::string, absl::Status> answers;
  for (const auto& item :
       std::filesystem::directory_iterator(KVBLEND_SOURCE_DIR "/tests/fuzz/corpus/" + corpus)) {
    std::ifstream file(item.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    answers[item.path().filename()] = exercise(Bytes(bytes));
  }
  return answers;
}

TEST(ModelCorporaTest, Folders) {
  auto answers = Replay("model_folder", ExerciseFolder);
  EXPECT_GE(answers.size(), 10u);
  for (const std::string whole : {"llama_fp8", "llama_fp8_rows"})
    EXPECT_TRUE(answers[whole].ok()) << answers[whole];
  EXPECT_THAT(std::string(answers["gemma3"].message()), HasSubstr("there is no model.safetensors"));
}

TEST(ModelCorporaTest, Parts) {
  auto answers = Replay("model_parts", ExerciseParts);
  EXPECT_GE(answers.size(), 6u);
  for (const auto& [name, answer] : answers) EXPECT_FALSE(answer.ok()) << name;
  // Joined, then refused as a model.
  EXPECT_THAT(std::string(answers["three"].message()), HasSubstr("llama."));
  EXPECT_THAT(std::string(answers["twice"].message()), HasSubstr("tensor 'b' is in fuzz-"));
}

TEST(ModelCorporaTest, Safetensors) {
  const std::map<std::string, std::string> refused = {
      {"overlapping", "tensors 'x' and 'y' overlap"},
      {"beyond_the_end", "lies at 0 to 16; allowed: within the 12 bytes"},
      {"backwards", "lies at 8 to 4"},
      {"sizes_that_overflow", "has dimension 4294967296; allowed: 1 to 4"},
      {"empty", "has dimension 0"},
      {"other_fields", "allowed: 'dtype', 'shape' and 'data_offsets'"}};
  size_t accepted = 0;
  for (const auto& [name, answer] : Replay("safetensors", ExerciseSafetensors)) {
    const auto found = refused.find(name);
    accepted += answer.ok();
    EXPECT_EQ(answer.ok(), found == refused.end()) << name << ": " << answer;
    if (found != refused.end()) {
      EXPECT_THAT(std::string(answer.message()), HasSubstr(found->second)) << name;
    }
  }
  EXPECT_GE(accepted, 4u);
}

}  // namespace
}  // namespace kvblend::model
