#include "engine/kv/tuning/tuning_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/kv/atomic_file.h"
#include "engine/kv/correction_fit.h"
#include "tests/unit/kv/learner_pairs.h"

namespace kvblend::kv {
namespace {

using testing::HasSubstr;

class TuningCheckpointTest : public testing::Test {
 protected:
  TuningCheckpointTest() {
    std::filesystem::remove(path_);
    const int64_t channels = SmallLearner().channels();
    stored_.resize(kTokens * channels);
    fresh_.resize(stored_.size());
    for (size_t i = 0; i < stored_.size(); ++i) {
      stored_[i] = static_cast<float>((i * 37) % 101) / 50;
      fresh_[i] = 1.2f * stored_[i] + static_cast<float>((i * 53) % 11) / 30;
    }
    for (int32_t i = 0; i < kTokens; ++i) tokens_.push_back(i);
    PairMoments pairs(channels);
    const std::vector<float> weights(kTokens, 1.0f);
    pairs.Add({.stored = stored_, .fresh = fresh_, .tokens = tokens_, .weights = weights});
    const LayerCorrection fit = FitLayer(pairs, {.rank = 2});
    fresh_tuners_.resize(2);  // of the first layer there is none
    fresh_tuners_[1].emplace(fit, 2, pairs);
  }
  ~TuningCheckpointTest() override { std::filesystem::remove(path_); }

  TuningCheckpoint Checkpoint(std::string_view identity = "these prompts",
                              LearnerOptions options = SmallLearner()) const {
    return {path_, options, identity};
  }
  void Step(LayerTuners& tuners, int times) const {
    for (int i = 0; i < times; ++i) {
      std::vector<float> y(stored_.size());
      tuners[1]->Apply(stored_, tokens_, absl::MakeSpan(y));
      for (size_t j = 0; j < y.size(); ++j) y[j] -= fresh_[j] + 0.1f;
      tuners[1]->AddGradient(stored_, tokens_, y);
      tuners[1]->Step(0.01);
    }
  }
  static LayerCorrection Result(const LayerTuners& tuners) { return tuners[1]->Mean(); }
  void ExpectRefused(const TuningCheckpoint& checkpoint, std::string_view why) {
    LayerTuners tuners = fresh_tuners_;
    const absl::Status status = checkpoint.Restore(tuners).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::AllOf(HasSubstr(path_), HasSubstr(why)));
    EXPECT_EQ(Result(tuners).offset, Result(fresh_tuners_).offset);
  }

  static constexpr int32_t kTokens = 40;
  const std::string path_ = testing::TempDir() + "tuning_checkpoint_test.attention";
  std::vector<float> stored_, fresh_;
  std::vector<int32_t> tokens_;
  LayerTuners fresh_tuners_;
};

TEST_F(TuningCheckpointTest, GoesOnAsIfNothingHadHappened) {
  LayerTuners tuners = fresh_tuners_;
  EXPECT_EQ(Checkpoint().Restore(tuners).value(), 0);
  Step(tuners, 5);
  ASSERT_TRUE(Checkpoint().Save(5, tuners).ok());
  Step(tuners, 3);

  LayerTuners resumed = fresh_tuners_;
  EXPECT_EQ(Checkpoint().Restore(resumed).value(), 5);
  Step(resumed, 3);
  EXPECT_EQ(Result(resumed).offset, Result(tuners).offset);
  EXPECT_EQ(Result(resumed).scale, Result(tuners).scale);
  EXPECT_EQ(Result(resumed).up, Result(tuners).up);
  EXPECT_NE(Result(resumed).offset, Result(fresh_tuners_).offset);
}

TEST_F(TuningCheckpointTest, OtherStepsThanTheseBeginAnew) {
  LayerTuners tuners = fresh_tuners_;
  Step(tuners, 2);
  ASSERT_TRUE(Checkpoint("other prompts").Save(2, tuners).ok());
  LayerTuners restored = fresh_tuners_;
  EXPECT_EQ(Checkpoint().Restore(restored).value(), 0);
  EXPECT_EQ(Result(restored).offset, Result(fresh_tuners_).offset);
}

TEST_F(TuningCheckpointTest, DamagedAndForeignFilesAreRefused) {
  LayerTuners tuners = fresh_tuners_;
  Step(tuners, 2);
  ASSERT_TRUE(Checkpoint().Save(2, tuners).ok());
  LearnerOptions other = SmallLearner();
  other.model_fingerprint[0] ^= 1;
  ExpectRefused(Checkpoint("these prompts", other), "another version, model");
  const std::string good = ReadWholeFile(path_, "").value();
  for (const size_t at : {size_t{70}, good.size() / 2, good.size() - 1}) {
    std::string bad = good;
    bad[at] ^= 0x10;
    ASSERT_TRUE(ReplaceFile(path_, bad).ok());
    ExpectRefused(Checkpoint(), "damaged");
  }
  ASSERT_TRUE(ReplaceFile(path_, good.substr(0, 30)).ok());
  ExpectRefused(Checkpoint(), "ends within its header");
  // Of a model with one layer more.
  LayerTuners more = tuners;
  more.push_back(more[1]);
  ASSERT_TRUE(Checkpoint().Save(2, more).ok());
  ExpectRefused(Checkpoint(), "more than belongs in it");
  more[1].reset();
  more[2].reset();
  ASSERT_TRUE(Checkpoint().Save(2, more).ok());
  ExpectRefused(Checkpoint(), "end too early");
}

TEST_F(TuningCheckpointTest, WithoutAPathNothingIsKept) {
  LayerTuners tuners = fresh_tuners_;
  const TuningCheckpoint none("", SmallLearner(), "these prompts");
  EXPECT_TRUE(none.Save(7, tuners).ok());
  EXPECT_EQ(none.Restore(tuners).value(), 0);
}

}  // namespace
}  // namespace kvblend::kv
