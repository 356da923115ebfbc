// Replays the corpora of the fuzzers of model files: tests/fixtures/make_model_file_corpora.py made them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
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
  EXPECT_GE(answers.size(), 7u);
  EXPECT_TRUE(answers["llama_fp8"].ok()) << answers["llama_fp8"];
  EXPECT_THAT(std::string(answers["gemma3"].message()), HasSubstr("there is no model.safetensors"));
}

TEST(ModelCorporaTest, Parts) {
  auto answers = Replay("model_parts", ExerciseParts);
  EXPECT_GE(answers.size(), 3u);
  // Joined, then refused as a model.
  EXPECT_THAT(std::string(answers["three"].message()), HasSubstr("llama."));
  EXPECT_THAT(std::string(answers["twice"].message()), HasSubstr("tensor 'b' is in fuzz-"));
}

TEST(ModelCorporaTest, Safetensors) {
  for (const auto& [name, answer] : Replay("safetensors", ExerciseSafetensors)) {
    EXPECT_TRUE(answer.ok()) << name << ": " << answer;
  }
}

}  // namespace
}  // namespace kvblend::model
