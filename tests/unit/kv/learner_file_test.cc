#include "engine/kv/learner_file.h"

#define XXH_INLINE_ALL
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <limits>
#include <utility>

#include "tests/unit/kv/learner_pairs.h"

namespace kvblend::kv {
namespace {

using testing::HasSubstr;

class LearnerFileTest : public testing::Test {
 protected:
  LearnerFileTest() {
    learner_.SetReplica(0x1234);
    learner_.Reset("0123456789abcdef");
    for (int i = 0; i < 6; ++i) maker_.Teach(learner_, 10, i % 3 == 2, 0.5);
    bytes_ = EncodeLearner(SmallLearner(), learner_.state());
  }

  /// With a checksum that fits.
  static std::string Sealed(std::string bytes) {
    bytes.resize(bytes.size() - sizeof(uint64_t));
    const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
    bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
    return bytes;
  }

  PairMaker maker_{3, 12};
  CorrectionLearner learner_{SmallLearner()};
  std::string bytes_;
};

TEST_F(LearnerFileTest, WhoHasSeenNothingKeepsWhatLearningBeganWith) {
  CorrectionLearner nothing(SmallLearner());
  nothing.SetReplica(7);
  nothing.Reset("0123456789abcdef");
  const absl::StatusOr<LearnerState> state =
      DecodeLearner(SmallLearner(), EncodeLearner(SmallLearner(), nothing.state()));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->base, "0123456789abcdef");
  EXPECT_EQ(state->replica, 7);
  EXPECT_EQ(state->tokens, 0);
  ASSERT_FALSE(state->fitted.empty());
  EXPECT_EQ(state->fitted[0].weight(), 0);
}

TEST_F(LearnerFileTest, ComesBackAndGoesOnAsIfNothingHadBeen) {
  absl::StatusOr<LearnerState> state = DecodeLearner(SmallLearner(), bytes_);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->fitted_chunks, 4);
  EXPECT_EQ(state->kept_back_chunks, 2);
  EXPECT_EQ(state->tokens, 60);
  EXPECT_EQ(state->base, "0123456789abcdef");
  EXPECT_EQ(state->replica, 0x1234);
  EXPECT_EQ(EncodeLearner(SmallLearner(), *state), bytes_);

  CorrectionLearner second(SmallLearner());
  second.Restore(*std::move(state));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(second.due(), learner_.due());
    PairMaker maker(3, 12, 100 + i), same(3, 12, 100 + i);
    maker.Teach(learner_, 10, false);
    same.Teach(second, 10, false);
  }
  EXPECT_EQ(EncodeLearner(SmallLearner(), second.state()), EncodeLearner(SmallLearner(), learner_.state()));
}

TEST_F(LearnerFileTest, ShortLivesAddUpToTheNextFit) {
  CorrectionLearner learner(SmallLearner());
  for (int i = 0; i < 4 * 30; ++i) maker_.Teach(learner, 12, i % 4 == 3);
  const auto verdict = learner.Fit([] { return true; });  // at 90 chunks: again at 154
  ASSERT_TRUE(verdict.has_value());
  learner.NoteFit(*verdict);
  for (int life = 0; life < 3; ++life) {
    EXPECT_FALSE(learner.due());
    absl::StatusOr<LearnerState> state =
        DecodeLearner(SmallLearner(), EncodeLearner(SmallLearner(), learner.state()));
    ASSERT_TRUE(state.ok()) << state.status();
    learner.Reset("");
    learner.Restore(*std::move(state));
    for (int i = 0; i < 22; ++i) maker_.Teach(learner, 12, false);
  }
  EXPECT_TRUE(learner.due());
  EXPECT_FALSE(learner.Fit([] { return false; }).has_value());  // stopped, and so not counted
  EXPECT_TRUE(learner.due());
}

TEST_F(LearnerFileTest, AFileWithoutCountsOfTheLastFitIsReadAsIfThatHadSeenItAll) {
  std::string old = bytes_;
  old[8] = 1;
  old.erase(112, 16);
  const absl::StatusOr<LearnerState> state = DecodeLearner(SmallLearner(), Sealed(old));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->own_at_fit, 4);
  EXPECT_EQ(state->all_at_fit, 4);
  EXPECT_EQ(state->replica, 0x1234);
  LearnerState expected = learner_.state();
  expected.own_at_fit = expected.all_at_fit = 4;
  EXPECT_EQ(EncodeLearner(SmallLearner(), *state), EncodeLearner(SmallLearner(), expected));
  for (const char version : {0, 3}) {
    old[8] = version;
    EXPECT_THAT(std::string(DecodeLearner(SmallLearner(), Sealed(old)).status().message()),
                HasSubstr("it is of another version"));
  }
}

TEST_F(LearnerFileTest, EveryChangedByteAndEveryShorterFileIsRefused) {
  for (size_t i = 0; i < bytes_.size(); ++i) {
    std::string bad = bytes_;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    EXPECT_EQ(DecodeLearner(SmallLearner(), bad).status().code(), absl::StatusCode::kInvalidArgument) << i;
    EXPECT_FALSE(DecodeLearner(SmallLearner(), bytes_.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(DecodeLearner(SmallLearner(), bytes_ + '\0').ok());
}

TEST_F(LearnerFileTest, WhatIsWholeButOfSomethingElseIsRefused) {
  const auto error = [&](auto change) {
    LearnerOptions options = SmallLearner();
    change(options);
    return std::string(DecodeLearner(options, bytes_).status().message());
  };
  EXPECT_EQ(error([](auto&) {}), "");
  for (const auto& message :
       {error([](auto& o) { o.model_fingerprint[31] ^= 1; }),
        error([](auto& o) { o.anchoring = Anchoring::kIsolated; }), error([](auto& o) { o.encoding = 3; }),
        error([](auto& o) { o.num_layers = 4; }), error([](auto& o) { o.num_kv_heads = 2; }),
        error([](auto& o) { o.head_dim = 5; }), error([](auto& o) { o.max_bytes = 1; })}) {
    EXPECT_THAT(message, HasSubstr("it is of another version, model, anchoring"));
  }
}

TEST_F(LearnerFileTest, NumbersThatNoPairsGiveAreRefused) {
  const auto error = [&](size_t at, auto value) {
    std::string bad = bytes_;
    std::memcpy(bad.data() + at, &value, sizeof(value));
    return std::string(DecodeLearner(SmallLearner(), Sealed(bad)).status().message());
  };
  EXPECT_EQ(error(64, int64_t{4}), "");
  EXPECT_THAT(error(64, int64_t{-4}), HasSubstr("a count is -4; allowed: 0 to 281474976710656"));
  EXPECT_THAT(error(72, std::numeric_limits<int64_t>::max()),
              HasSubstr("a count is 9223372036854775807; allowed: 0 to"));
  EXPECT_THAT(error(88, int64_t{0x3130303030303000}), HasSubstr("begins with a zero"));
  EXPECT_EQ(error(112, int64_t{4}), "");
  EXPECT_THAT(error(112, int64_t{5}), HasSubstr("the last fit had 5 chunks; allowed: 0 to 4"));
  EXPECT_THAT(error(120, int64_t{-1}), HasSubstr("a count is -1; allowed: 0 to"));
  EXPECT_THAT(error(128, int64_t{-1}), HasSubstr("a number of pairs is -1"));
  EXPECT_THAT(error(136, -1.0), HasSubstr("a weight is -1"));
  EXPECT_THAT(error(144, std::numeric_limits<double>::infinity()), HasSubstr("a moment is not finite"));
  EXPECT_THAT(std::string(DecodeLearner(SmallLearner(), Sealed(bytes_ + "more")).status().message()),
              HasSubstr("bytes; allowed: "));
}

}  // namespace
}  // namespace kvblend::kv
