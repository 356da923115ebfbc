#include "engine/kv/correction_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "engine/kv/correction_fit.h"
#include "tests/unit/kv/learner_pairs.h"

namespace kvblend::kv {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::Lt;
using Verdict = CorrectionLearner::Verdict;

/// What learners in this process have seen.
class OtherLearners final : public OtherPairs {
 public:
  explicit OtherLearners(std::vector<const CorrectionLearner*> learners, int64_t new_chunks = 0)
      : learners_(std::move(learners)), new_chunks_(new_chunks) {}

  Seen seen() const override {
    Seen seen{.new_chunks = new_chunks_, .learners = static_cast<int32_t>(learners_.size())};
    for (const CorrectionLearner* learner : learners_) {
      const LearnerState& state = learner->state();
      seen.fitted_chunks += state.fitted_chunks;
      seen.kept_back_chunks += state.kept_back_chunks;
      seen.tokens += state.tokens;
      if (!state.fitted.empty()) seen.weight += state.fitted.front().weight();
    }
    return seen;
  }
  bool AddTo(int32_t layer, PairMoments& fitted, PairMoments& kept_back,
             absl::FunctionRef<bool()> /*keep_going*/) override {
    for (const CorrectionLearner* learner : learners_) {
      fitted.Merge(learner->state().fitted[layer]);
      kept_back.Merge(learner->state().kept_back[layer]);
    }
    return layer < breaks_at;
  }

  int32_t breaks_at = 1000;

 private:
  const std::vector<const CorrectionLearner*> learners_;
  const int64_t new_chunks_;
};

class CorrectionLearnerTest : public testing::Test {
 protected:
  static constexpr int64_t kRows = 40;

  void Teach(CorrectionLearner& learner, int64_t chunks, float sign = 1, float judged_sign = 1) {
    for (int64_t i = 0; i < chunks; ++i) {
      const bool kept_back = i % 4 == 3;
      maker_.Teach(learner, kRows, kept_back, 1, kept_back ? judged_sign : sign);
    }
  }
  static Verdict Fit(CorrectionLearner& learner) {
    std::optional<Verdict> verdict = learner.Fit([] { return true; });
    EXPECT_TRUE(verdict.has_value());
    if (verdict.has_value()) learner.NoteFit(*verdict);
    return verdict.value_or(Verdict{});
  }

  PairMaker maker_{3, 12};
};

TEST_F(CorrectionLearnerTest, IsTheOfflineFitOfTheSamePairs) {
  CorrectionLearner learner(SmallLearner());
  PairMoments fitted(12), judged(12);
  for (int i = 0; i < 40; ++i) {
    PairMaker::Chunk chunk = maker_.Make(kRows, i % 4 == 3);
    PairMaker::Teach(learner, chunk);
    const auto layer = [](const std::vector<float>& values) {
      return absl::MakeConstSpan(values).subspan(2 * kRows * 12, kRows * 12);
    };
    (i % 4 == 3 ? judged : fitted)
        .Add({.stored = layer(chunk.stored),
              .fresh = layer(chunk.fresh),
              .tokens = chunk.tokens,
              .weights = absl::MakeConstSpan(chunk.weights).subspan(0, kRows)});
  }
  const Verdict verdict = Fit(learner);
  const LayerCorrection expected = FitLayer(fitted, SmallLearner().fit),
                        &actual = verdict.correction.layers[2];
  ASSERT_EQ(actual.down.size(), expected.down.size());
  for (size_t i = 0; i < actual.scale.size(); ++i) {
    EXPECT_NEAR(actual.scale[i], expected.scale[i], 1e-4);
    EXPECT_NEAR(actual.offset[i], expected.offset[i], 1e-4);
  }
  // Directions may be turned round; what they do together may not.
  EXPECT_NEAR(ResidualShare(judged, actual, 3), ResidualShare(judged, expected, 3), 1e-5);
  EXPECT_NEAR(verdict.after[2], ResidualShare(judged, expected, 3), 1e-5);
  EXPECT_TRUE(verdict.better);
  EXPECT_TRUE(verdict.correction.layers[0].empty());  // nothing to correct
  EXPECT_EQ(verdict.correction.model_fingerprint, SmallLearner().model_fingerprint);
}

TEST_F(CorrectionLearnerTest, FitsAtGrowingNumbersOfChunks) {
  CorrectionLearner learner(SmallLearner());
  std::vector<int64_t> fits;
  for (int i = 0; i < 400; ++i) {
    maker_.Teach(learner, 12, i % 4 == 3);
    if (!learner.due()) continue;
    fits.push_back(learner.state().fitted_chunks);
    Fit(learner);
    EXPECT_FALSE(learner.due());
  }
  EXPECT_THAT(fits, ElementsAre(8, 16, 32, 64, 128, 192, 256));
}

TEST_F(CorrectionLearnerTest, NothingIsDueWithoutChunksToJudgeBy) {
  CorrectionLearner learner(SmallLearner());
  for (int i = 0; i < 20; ++i) maker_.Teach(learner, kRows, /*kept_back=*/i == 0);
  EXPECT_FALSE(learner.due());
  maker_.Teach(learner, kRows, /*kept_back=*/true);
  EXPECT_TRUE(learner.due());
}

TEST_F(CorrectionLearnerTest, AMapTakesManyPairs) {
  CorrectionLearner learner(SmallLearner());
  int chunks = 0;
  for (; !learner.due(); ++chunks) maker_.Teach(learner, 5, chunks % 4 == 3);
  EXPECT_EQ(learner.state().fitted_chunks, 20);  // 100 pairs of 12 channels
  LearnerOptions small = SmallLearner();
  small.max_bytes = 1;
  CorrectionLearner scales(small);
  for (int i = 0; i < 11; ++i) maker_.Teach(scales, 5, i % 4 == 3);
  EXPECT_FALSE(scales.full());
  maker_.Teach(scales, 5, false);
  EXPECT_TRUE(scales.due());  // those take few
}

TEST_F(CorrectionLearnerTest, AFitThatHarmsIsRefused) {
  CorrectionLearner learner(SmallLearner());
  Teach(learner, 40, /*sign=*/1, /*judged_sign=*/-1);
  const Verdict verdict = Fit(learner);
  EXPECT_FALSE(verdict.better);
  EXPECT_THAT(verdict.after, Each(1.0));
  for (const LayerCorrection& layer : verdict.correction.layers) EXPECT_TRUE(layer.empty());
}

TEST_F(CorrectionLearnerTest, WhatIsInForceHasToBeBeaten) {
  CorrectionLearner learner(SmallLearner());
  Teach(learner, 40);
  const Verdict first = Fit(learner);
  ASSERT_TRUE(first.better);
  learner.SetInForce(first.correction);
  EXPECT_EQ(learner.Judge(), first.after);
  const Verdict again = Fit(learner);  // of the same pairs
  EXPECT_FALSE(again.better);
  EXPECT_EQ(again.correction.layers[1].down, first.correction.layers[1].down);
  // The law changes, and both kinds of chunks say so: what is in force then is worse than nothing.
  learner.Reset("");
  Teach(learner, 40, -1, -1);
  EXPECT_GT(learner.Judge()[1], 1);
  const Verdict turned = Fit(learner);
  EXPECT_TRUE(turned.better);
  EXPECT_LT(turned.after[1], 0.5);
  // And where no fit helps, that of the old law goes all the same.
  learner.Reset("");
  Teach(learner, 40, /*sign=*/1, /*judged_sign=*/-1);
  const Verdict dropped = Fit(learner);
  EXPECT_TRUE(dropped.better);
  EXPECT_THAT(dropped.after, Each(1.0));
}

TEST_F(CorrectionLearnerTest, AGivenCorrectionOfAnotherRankIsKeptLayerByLayer) {
  LearnerOptions wide = SmallLearner();
  wide.fit.rank = 5;
  CorrectionLearner teacher(wide), learner(SmallLearner());
  Teach(teacher, 400);
  LearnedCorrection given = Fit(teacher).correction;
  given.layers[2] = {};
  Teach(learner, 16);
  learner.SetInForce(given);
  const Verdict verdict = Fit(learner);
  EXPECT_TRUE(verdict.better);  // of the layer that the given one left alone
  EXPECT_EQ(verdict.correction.rank, 5);
  EXPECT_EQ(verdict.correction.layers[1].down, given.layers[1].down);
  ASSERT_EQ(verdict.correction.layers[2].down.size(), 5 * 12);
  ASSERT_EQ(verdict.correction.layers[2].up.size(), 5 * 12);
  learner.SetInForce(verdict.correction);
  EXPECT_EQ(learner.Judge(), verdict.after);
}

TEST_F(CorrectionLearnerTest, PairsBehindReusedKvCountLess) {
  LearnerOptions options = SmallLearner();
  options.fit.ridge = 1e-6;
  CorrectionLearner learner(options);
  for (int i = 0; i < 40; ++i) {
    maker_.Teach(learner, kRows, i % 4 == 3, 1, 1);
    maker_.Teach(learner, kRows, false, 0.01, -1);  // says the contrary, but hardly counts
  }
  EXPECT_EQ(learner.state().fitted_chunks, 70);
  EXPECT_THAT(Fit(learner).after[1], Lt(0.3));
}

TEST_F(CorrectionLearnerTest, OldPairsFade) {
  LearnerOptions options = SmallLearner();
  options.max_tokens = 20 * kRows;
  CorrectionLearner learner(options);
  Teach(learner, 200, -1, -1);
  EXPECT_LE(learner.state().fitted[1].weight(), options.max_tokens * (1 + 1e-9));
  EXPECT_LE(learner.state().kept_back[1].weight(), options.max_tokens / 3 * (1 + 1e-9));
  Teach(learner, 200, 1, 1);
  EXPECT_LT(Fit(learner).after[1], 0.3);  // of the old law hardly anything is left
}

TEST_F(CorrectionLearnerTest, ASmallBudgetLearnsScalesAlone) {
  LearnerOptions options = SmallLearner();
  options.max_bytes = 2 * 3 * PairMoments::SizeBytes(12, PairMoments::Kind::kFull) - 1;
  CorrectionLearner learner(options);
  EXPECT_FALSE(learner.full());
  Teach(learner, 40);
  const Verdict verdict = Fit(learner);
  EXPECT_TRUE(verdict.better);
  EXPECT_EQ(verdict.correction.rank, 0);
  EXPECT_TRUE(verdict.correction.layers[1].down.empty());
  EXPECT_THAT(verdict.after[1], testing::AllOf(Lt(0.95), Gt(0.05)));
  learner.SetInForce(verdict.correction);
  EXPECT_EQ(learner.Judge(), verdict.after);
  LearnedCorrection with_map = verdict.correction;
  with_map.rank = 3;
  EXPECT_FALSE(learner.CanJudge(with_map));
}

TEST_F(CorrectionLearnerTest, FitsWithOthersAsOneThatHasSeenItAll) {
  CorrectionLearner first(SmallLearner()), second(SmallLearner()), third(SmallLearner()), all(SmallLearner());
  for (int i = 0; i < 48; ++i) {
    PairMaker::Chunk chunk = maker_.Make(kRows, i % 4 == 3);
    PairMaker::Teach(all, chunk);
    PairMaker::Teach(i % 3 == 0 ? first : i % 3 == 1 ? second : third, chunk);
  }
  OtherLearners others({&second, &third});
  const std::optional<Verdict> merged = first.Fit([] { return true; }, &others);
  ASSERT_TRUE(merged.has_value());
  const Verdict expected = Fit(all);
  EXPECT_TRUE(merged->better);
  EXPECT_EQ(merged->correction.origin.tokens, 48 * kRows);
  EXPECT_EQ(merged->fitted_chunks, 36);
  EXPECT_EQ(merged->kept_back_chunks, 12);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_NEAR(merged->after[layer], expected.after[layer], 1e-5);
    EXPECT_NEAR(merged->deviations[layer], all.Deviations()[layer], 1e-5);
  }
  EXPECT_EQ(expected.deviations, all.Deviations());
  for (size_t i = 0; i < expected.correction.layers[1].scale.size(); ++i) {
    EXPECT_NEAR(merged->correction.layers[1].scale[i], expected.correction.layers[1].scale[i], 1e-4);
    EXPECT_NEAR(merged->correction.layers[1].offset[i], expected.correction.layers[1].offset[i], 1e-4);
  }
  // What it has seen itself is what it was.
  EXPECT_EQ(first.state().fitted_chunks + first.state().kept_back_chunks, 16);
  EXPECT_LT(first.state().fitted[1].weight(), 13 * kRows);
}

TEST_F(CorrectionLearnerTest, OneThatHasSeenNothingFitsWhatOthersHaveSeen) {
  CorrectionLearner teacher(SmallLearner()), learner(SmallLearner());
  Teach(teacher, 40);
  OtherLearners others({&teacher}, /*new_chunks=*/30);
  EXPECT_FALSE(learner.due());
  EXPECT_TRUE(learner.due(others.seen()));
  const std::optional<Verdict> verdict = learner.Fit([] { return true; }, &others);
  ASSERT_TRUE(verdict.has_value());
  EXPECT_EQ(verdict->after, Fit(teacher).after);
  EXPECT_TRUE(learner.state().fitted.empty());

  CorrectionLearner judges(SmallLearner());  // as long as nobody has anything to judge by, nothing is due
  for (int i = 0; i < 20; ++i) maker_.Teach(judges, kRows, false);
  EXPECT_FALSE(learner.due(OtherLearners({&judges}, 20).seen()));
}

TEST_F(CorrectionLearnerTest, AfterARestartOnlyWhatCameSinceTheLastFitIsNew) {
  CorrectionLearner other(SmallLearner()), learner(SmallLearner());
  Teach(other, 200);  // of which 150 are fitted
  Teach(learner, 20);
  OtherLearners others({&other});
  learner.NoteFit(learner.Fit([] { return true; }, &others).value());
  CorrectionLearner restarted(SmallLearner());
  restarted.Restore(learner.state());
  // Whose chunks the last fit had is forgotten, but not how many.
  OtherPairs::Seen seen = others.seen();
  seen.has_fit = false;
  seen.new_chunks = seen.fitted_chunks;
  EXPECT_FALSE(restarted.due(seen));
  seen.has_fit = true;  // what a fit since the start did not have is new
  EXPECT_TRUE(restarted.due(seen));
  seen.has_fit = false;
  seen.fitted_chunks += 2 * 64;
  seen.new_chunks = seen.fitted_chunks;
  EXPECT_TRUE(restarted.due(seen));
}

TEST_F(CorrectionLearnerTest, WhereManyLearnFitsComeNoMoreOften) {
  CorrectionLearner learner(SmallLearner());
  Teach(learner, 4 * 20);
  const OtherPairs::Seen three{.fitted_chunks = 300, .kept_back_chunks = 100, .weight = 1e4, .learners = 3};
  OtherPairs::Seen seen = three;
  OtherLearners others({});
  ASSERT_TRUE(learner.due());
  learner.NoteFit(learner.Fit([] { return true; }, &others).value());  // at 60 chunks: again at 64
  EXPECT_FALSE(learner.due(seen));
  seen.new_chunks = 4;
  EXPECT_TRUE(learner.due(seen));
  Teach(learner, 8);
  learner.NoteFit(learner.Fit([] { return true; }, &others).value());  // at 66
  seen.new_chunks = 64;
  EXPECT_FALSE(learner.due(seen));
  seen.new_chunks = 4 * 64 - 1;
  EXPECT_FALSE(learner.due(seen));
  seen.new_chunks = 4 * 64;
  EXPECT_TRUE(learner.due(seen));
  seen = three;  // the others stand still: its own chunks count as well
  Teach(learner, 2 * 128);
  EXPECT_FALSE(learner.due(seen));
  Teach(learner, 2 * 64);
  EXPECT_TRUE(learner.due(seen));
}

TEST_F(CorrectionLearnerTest, WhatCannotBeHadOfOthersEndsTheFitWithNothing) {
  CorrectionLearner teacher(SmallLearner()), learner(SmallLearner());
  Teach(teacher, 40);
  Teach(learner, 40);
  OtherLearners others({&teacher});
  others.breaks_at = 2;
  EXPECT_FALSE(learner.Fit([] { return true; }, &others).has_value());
  EXPECT_TRUE(learner.due());  // as if it had not begun
}

TEST_F(CorrectionLearnerTest, AFitCanBeStoppedBetweenTheStepsOfEveryLayer) {
  CorrectionLearner learner(SmallLearner());
  Teach(learner, 40);
  learner.SetInForce(Fit(learner).correction);
  Teach(learner, 80);
  int asked = 0;
  const auto ends_at = [&](int step) {
    asked = 0;
    return !learner.Fit([&] { return ++asked < step; }).has_value();
  };
  int step = 1;
  for (; ends_at(step); ++step) {
    EXPECT_EQ(asked, step);
    EXPECT_TRUE(learner.due());
  }
  EXPECT_GT(step, 2 * 5);  // of the two layers that have something to correct
}

TEST_F(CorrectionLearnerTest, AJudgementCanBeStopped) {
  CorrectionLearner learner(SmallLearner());
  Teach(learner, 40);
  learner.SetInForce(Fit(learner).correction);
  const std::vector<double> all = learner.Judge();
  int asked = 0;
  EXPECT_THAT(learner.Judge([&] { return ++asked < 3; }), ElementsAre(all[0], all[1], 1.0));
  EXPECT_EQ(asked, 3);
}

}  // namespace
}  // namespace kvblend::kv
