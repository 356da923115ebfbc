#include "engine/kv/correction_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::kv {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<float> Offsets() {
  std::vector<float> offsets(4 * kernels::kNumKvCorrectionPlaces);
  std::iota(offsets.begin(), offsets.end(), 5.0f);
  return offsets;
}

LearnedCorrection Small() {
  LearnedCorrection correction{
      .anchoring = Anchoring::kIsolated,
      .num_kv_heads = 1,
      .head_dim = 2,
      .rank = 1,
      .layers = {{},
                 {.scale = {1, 2, 3, 4},
                  .offset = Offsets(),
                  .down = {0.1f, 0.2f, 0.3f, 0.4f},
                  .up = {-1, -2, -3, -4}}},
      .origin = {.data = "some questions", .tokens = 99, .kl_before = 0.5, .kl_after = 0.25}};
  correction.model_fingerprint.fill(0xAB);
  return correction;
}

TEST(CorrectionFileTest, ComesBackAsItWasWritten) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/model.kvcorrection";
  ASSERT_TRUE(WriteCorrectionFile(path, Small()).ok());
  ASSERT_TRUE(WriteCorrectionFile(path, Small()).ok());  // over the old one
  const absl::StatusOr<CorrectionFile> file = ReadCorrectionFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->version, CorrectionVersion(EncodeCorrection(Small())));
  const LearnedCorrection expected = Small(), &actual = file->correction;
  EXPECT_EQ(actual.model_fingerprint, expected.model_fingerprint);
  EXPECT_EQ(actual.anchoring, expected.anchoring);
  EXPECT_EQ(actual.rank, 1);
  ASSERT_EQ(actual.layers.size(), 2);
  EXPECT_TRUE(actual.layers[0].empty());
  EXPECT_EQ(actual.layers[1].scale, expected.layers[1].scale);
  EXPECT_EQ(actual.layers[1].offset, expected.layers[1].offset);
  EXPECT_EQ(actual.layers[1].down, expected.layers[1].down);
  EXPECT_EQ(actual.layers[1].up, expected.layers[1].up);
  EXPECT_EQ(actual.origin.data, "some questions");
  EXPECT_EQ(actual.origin.tokens, 99);
  EXPECT_EQ(actual.origin.kl_before, 0.5);
  EXPECT_EQ(actual.origin.kl_after, 0.25);
  EXPECT_NE(access((path + ".part").c_str(), F_OK), 0);
}

TEST(CorrectionFileTest, WhatWasLearnedFromStoredKvSaysFromWhich) {
  for (const LearnedFrom& learned : {LearnedFrom{}, LearnedFrom{3, "00c0ffee00c0ffee"}}) {
    LearnedCorrection correction = Small();
    correction.learned = learned;
    const absl::StatusOr<LearnedCorrection> again = DecodeCorrection(EncodeCorrection(correction));
    ASSERT_TRUE(again.ok()) << again.status();
    ASSERT_TRUE(again->learned.has_value());
    EXPECT_EQ(again->learned->encoding, learned.encoding);
    EXPECT_EQ(again->learned->base, learned.base);
  }
  EXPECT_FALSE(DecodeCorrection(EncodeCorrection(Small()))->learned.has_value());
  LearnedCorrection wrong = Small();
  wrong.learned = LearnedFrom{3, "no version of it"};
  EXPECT_THAT(DecodeCorrection(EncodeCorrection(wrong)).status().ToString(),
              HasSubstr("what learning began with is not 16 hexadecimal digits"));
}

TEST(CorrectionFileTest, EveryChangedByteAndEveryShorterFileIsRefused) {
  const std::string good = EncodeCorrection(Small());
  ASSERT_TRUE(DecodeCorrection(good).ok());
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_EQ(DecodeCorrection(bad).status().code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_FALSE(DecodeCorrection(good.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodeCorrection(good + '\0').ok());
}

TEST(CorrectionFileTest, WhatIsWholeButWrongIsNamed) {
  const auto error = [](auto change) {
    LearnedCorrection correction = Small();
    change(correction);
    return std::string(DecodeCorrection(EncodeCorrection(correction)).status().message());
  };
  EXPECT_EQ(error([](auto&) {}), "");
  EXPECT_THAT(error([](auto& c) { c.layers.clear(); }), HasSubstr("layers is 0; allowed: 1 to 65536"));
  EXPECT_THAT(error([](auto& c) { c.num_kv_heads = 0; }), HasSubstr("num_kv_heads is 0"));
  EXPECT_THAT(error([](auto& c) { c.head_dim = 1 << 20; }), HasSubstr("head_dim is 1048576"));
  EXPECT_THAT(error([](auto& c) { c.head_dim = 1 << 16; }), HasSubstr("layer 1 ends within its scale"));
  EXPECT_THAT(error([](auto& c) { c.rank = 2000; }), HasSubstr("rank is 2000; allowed: 0 to 1024"));
  EXPECT_THAT(error([](auto& c) { c.layers[1].up.push_back(0); }),
              HasSubstr("4 bytes stand behind the last layer"));
  EXPECT_THAT(error([](auto& c) { c.layers[1].offset[2] = std::numeric_limits<float>::quiet_NaN(); }),
              HasSubstr("layer 1: offset[2] is nan; allowed: finite"));
}

TEST(CorrectionFileTest, ErrorsNameTheFile) {
  const test_support::TemporaryFolder folder;
  const std::string missing = folder.path() + "/none";
  EXPECT_EQ(ReadCorrectionFile(missing).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ReadCorrectionFile(missing).status().ToString(), HasSubstr(missing));
  const std::string bad = folder.path() + "/bad";
  std::ofstream(bad) << "kvblcorr, but no more than that";
  EXPECT_THAT(ReadCorrectionFile(bad).status().ToString(), HasSubstr(bad));
  const std::string nowhere = folder.path() + "/no/such/folder";
  EXPECT_THAT(WriteCorrectionFile(nowhere, Small()).ToString(), HasSubstr(nowhere));
  // Where the new file can't take its place the old one stays, and nothing is left beside it.
  const std::string in_the_way = folder.path() + "/in_the_way";
  ASSERT_EQ(mkdir(in_the_way.c_str(), 0700), 0);
  EXPECT_FALSE(WriteCorrectionFile(in_the_way, Small()).ok());
  EXPECT_NE(access((in_the_way + ".part").c_str(), F_OK), 0);
}

TEST(CorrectionFileTest, WhatIsNoCorrectionIsNotReplacedByOne) {
  const test_support::TemporaryFolder folder;
  const std::string path = folder.path() + "/file";
  EXPECT_TRUE(CheckCorrectionWritable(path).ok());
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  std::ofstream(path).flush();  // an empty one will do
  EXPECT_TRUE(CheckCorrectionWritable(path).ok());
  std::ofstream(path) << "kvblcorr, damaged";
  EXPECT_TRUE(CheckCorrectionWritable(path).ok());
  std::ofstream(path) << "GGUF";
  const absl::Status refused = CheckCorrectionWritable(path);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.ToString(), HasSubstr(path + " is something else than a learned correction"));
  EXPECT_EQ(CheckCorrectionWritable(folder.path() + "/no/file").code(), absl::StatusCode::kNotFound);
}

TEST(CorrectionFileTest, WhatIsNoFileIsRefusedByName) {
  const test_support::TemporaryFolder folder;
  const std::string pipe = folder.path() + "/pipe", loop = folder.path() + "/loop";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(symlink("loop", loop.c_str()), 0);
  for (const std::string& path : {pipe, loop, folder.path()}) {
    const absl::Status no_file =
        absl::InvalidArgumentError(absl::StrCat(path, " is no regular file; allowed: one, or a new name"));
    EXPECT_EQ(CheckCorrectionWritable(path), no_file);
    EXPECT_EQ(ReadCorrectionFile(path).status(), no_file);
  }
}

}  // namespace
}  // namespace kvblend::kv
