// Damaged model files: never a crash or a sanitizer's complaint, and every refusal says what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/gguf_exercise.h"
#include "tests/fuzz/gguf_seeds.h"

namespace kvblend::model {
namespace {

using test_support::GgufSeeds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

absl::Status Exercise(const std::string& bytes) {
  // A block of its own, so that AddressSanitizer sees every read past the end.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return ExerciseGguf({reinterpret_cast<const std::byte*>(exact.data()), exact.size()});
}

// OK, or one of the three refusals of gguf_file.h with the file's name in it.
void ExpectWellBehaved(const std::string& bytes, const std::string& what) {
  const absl::Status status = Exercise(bytes);
  if (status.ok()) return;
  EXPECT_THAT(status.code(), AnyOf(absl::StatusCode::kInvalidArgument, absl::StatusCode::kDataLoss,
                                   absl::StatusCode::kUnimplemented))
      << what << ": " << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("fuzz.gguf")) << what << ": " << status;
}

TEST(GgufCorruptionTest, SeedsAreRead) {
  const std::vector<std::string> seeds = GgufSeeds();
  for (size_t i = 0; i + 1 < seeds.size(); ++i)
    EXPECT_TRUE(Exercise(seeds[i]).ok()) << i << ": " << Exercise(seeds[i]);
  EXPECT_THAT(std::string(Exercise(seeds.back()).message()),
              HasSubstr("key 'tokenizer.ggml.model' is missing"));
}

TEST(GgufCorruptionTest, EveryByteChanged) {
  for (const size_t seed : {size_t{1}, size_t{2}}) {
    const std::string original = GgufSeeds()[seed];
    for (size_t at = 0; at < original.size(); ++at) {
      for (const int mask : {0x01, 0x80, 0xFF}) {
        std::string bytes = original;
        bytes[at] = static_cast<char>(bytes[at] ^ mask);
        ExpectWellBehaved(bytes, "seed " + std::to_string(seed) + ", byte " + std::to_string(at));
      }
    }
  }
}

TEST(GgufCorruptionTest, EveryTruncation) {
  const std::string original = GgufSeeds()[0];
  for (size_t size = 0; size < original.size(); ++size) {
    const absl::Status status = Exercise(original.substr(0, size));
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << "at " << size << ": " << status;
  }
}

TEST(GgufCorruptionTest, RandomEdits) {
  constexpr uint64_t kSeed = 20261121;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::vector<std::string> seeds = GgufSeeds();
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = seeds[random() % seeds.size()];
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits && bytes.size() > 8; ++edit) {
      const size_t at = random() % bytes.size();
      const size_t length = std::min<size_t>(1 + random() % 8, bytes.size() - at);
      switch (random() % 4) {
        case 0:
          bytes.erase(at, length);
          break;
        case 1:
          bytes.insert(at, bytes.substr(random() % bytes.size(), length));
          break;
        case 2:  // extreme lengths and counts
          std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length, random() % 2 ? '\xFF' : '\0');
          break;
        default:
          bytes[at] = static_cast<char>(random());
      }
    }
    ExpectWellBehaved(bytes, "round " + std::to_string(round));
  }
}

}  // namespace
}  // namespace kvblend::model
