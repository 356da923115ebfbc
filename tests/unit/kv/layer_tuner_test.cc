#include "engine/kv/tuning/layer_tuner.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "engine/kv/correction_fit.h"

namespace kvblend::kv {
namespace {

constexpr int64_t kWidth = 12, kTokens = 600;
constexpr int32_t kRank = 3;

/// Pairs whose deviation a correction explains in part.
class LayerTunerTest : public testing::Test {
 protected:
  LayerTunerTest() : stored_(kTokens * kWidth), fresh_(stored_.size()), tokens_(kTokens) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::iota(tokens_.begin(), tokens_.end(), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      const float shared = normal(random);
      for (int64_t i = 0; i < kWidth; ++i) {
        stored_[t * kWidth + i] = 1 + 0.5f * static_cast<float>(i) * normal(random) + shared;
        fresh_[t * kWidth + i] = 1.1f * stored_[t * kWidth + i] + 0.3f * shared + 0.5f +
                                 0.2f * normal(random) + (t < 4 ? 2.0f : 0.0f);
      }
    }
    moments_.Add({.stored = stored_,
                  .fresh = fresh_,
                  .tokens = tokens_,
                  .weights = std::vector<float>(kTokens, 1.0f)});
  }

  /// A target that the least-squares fit does not aim at: the first half of the tokens counts, and of the
  /// channels each other than it does the more. Its gradient goes to `gradient`.
  double Loss(const std::vector<float>& y, std::vector<float>& gradient) const {
    double loss = 0;
    gradient.assign(y.size(), 0);
    for (int64_t t = 0; t < kTokens / 2; ++t) {
      for (int64_t i = 0; i < kWidth; ++i) {
        const float missed = y[t * kWidth + i] - (fresh_[t * kWidth + i] + 0.4f * static_cast<float>(i % 3));
        loss += double{missed} * missed / (kTokens / 2 * kWidth);
        gradient[t * kWidth + i] = 2 * missed / (kTokens / 2 * kWidth);
      }
    }
    return loss;
  }
  double LossOf(const LayerCorrection& correction) const {
    std::vector<float> y(stored_.size()), unused;
    LayerTuner(correction, kRank, moments_).Apply(stored_, tokens_, absl::MakeSpan(y));
    return Loss(y, unused);
  }

  std::vector<float> stored_, fresh_;
  std::vector<int32_t> tokens_;
  PairMoments moments_{kWidth};
};

TEST_F(LayerTunerTest, IsTheFitUntilTheFirstStep) {
  const LayerCorrection fit = FitLayer(moments_, {.rank = kRank});
  const LayerCorrection same = LayerTuner(fit, kRank, moments_).Mean();
  EXPECT_EQ(same.scale, fit.scale);
  EXPECT_EQ(same.offset, fit.offset);
  EXPECT_EQ(same.up, fit.up);
  EXPECT_EQ(same.down, fit.down);
}

TEST_F(LayerTunerTest, AppliesWhatTheFormulaSays) {
  const LayerCorrection fit = FitLayer(moments_, {.rank = kRank});
  std::vector<float> y(stored_.size());
  LayerTuner(fit, kRank, moments_).Apply(stored_, tokens_, absl::MakeSpan(y));
  for (const int64_t t : {0, 2, 17, 599}) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const float* x = stored_.data() + t * kWidth;
      double expected = fit.scale[i] * x[i] + fit.offset[kernels::KvCorrectionPlace(t) * kWidth + i];
      for (int32_t r = 0; r < kRank; ++r) {
        double down = 0;
        for (int64_t j = 0; j < kWidth; ++j) down += x[j] * fit.down[j * kRank + r];
        expected += down * fit.up[r * kWidth + i];
      }
      EXPECT_NEAR(y[t * kWidth + i], expected, 1e-3);
    }
  }
}

TEST_F(LayerTunerTest, StepsLowerWhatTheirGradientsAreOf) {
  for (const int32_t rank : {0, kRank}) {
    const LayerCorrection fit = FitLayer(moments_, {.rank = rank});
    LayerTuner tuner(fit, rank, moments_);
    std::vector<float> y(stored_.size()), gradient;
    tuner.Apply(stored_, tokens_, absl::MakeSpan(y));
    const double before = Loss(y, gradient);
    for (int step = 0; step < 300; ++step) {
      tuner.Apply(stored_, tokens_, absl::MakeSpan(y));
      Loss(y, gradient);
      tuner.AddGradient(stored_, tokens_, gradient);
      tuner.Step(0.01);
    }
    tuner.Apply(stored_, tokens_, absl::MakeSpan(y));
    const double after = Loss(y, gradient);
    EXPECT_LT(after, 0.5 * before) << "rank " << rank;
    if (rank == kRank) {
      EXPECT_NEAR(LossOf(tuner.Mean()), after, 0.1 * before);
    }
  }
}

// What never varied says nothing of how it should be scaled, however it comes to vary later.
TEST_F(LayerTunerTest, AConstantChannelKeepsItsScale) {
  constexpr int64_t kConstant = 5;
  for (int64_t t = 0; t < kTokens; ++t) stored_[t * kWidth + kConstant] = 0.1f;
  PairMoments moments(kWidth);
  moments.Add(
      {.stored = stored_, .fresh = fresh_, .tokens = tokens_, .weights = std::vector<float>(kTokens, 1.0f)});
  const LayerCorrection fit = FitLayer(moments, {.rank = kRank});
  LayerTuner tuner(fit, kRank, moments);
  std::vector<float> y(stored_.size()), gradient;
  for (int step = 0; step < 20; ++step) {
    tuner.Apply(stored_, tokens_, absl::MakeSpan(y));
    Loss(y, gradient);
    tuner.AddGradient(stored_, tokens_, gradient);
    tuner.Step(0.01);
  }
  EXPECT_EQ(tuner.Mean().scale[kConstant], fit.scale[kConstant]);
  EXPECT_NE(tuner.Mean().scale[kConstant - 1], fit.scale[kConstant - 1]);
}

// Half of the rows and then the other half come to the same as all of them.
TEST_F(LayerTunerTest, GradientsAddUpUntilAStep) {
  const LayerCorrection fit = FitLayer(moments_, {.rank = kRank});
  LayerTuner whole(fit, kRank, moments_), halves(fit, kRank, moments_);
  std::vector<float> y(stored_.size()), gradient;
  whole.Apply(stored_, tokens_, absl::MakeSpan(y));
  Loss(y, gradient);
  whole.AddGradient(stored_, tokens_, gradient);
  whole.Step(0.01);
  const auto part = [](const auto& values, int64_t begin, int64_t count) {
    return absl::MakeConstSpan(values).subspan(begin, count);
  };
  for (const int64_t begin : {int64_t{0}, kTokens / 2}) {
    halves.AddGradient(part(stored_, begin * kWidth, kTokens / 2 * kWidth), part(tokens_, begin, kTokens / 2),
                       part(gradient, begin * kWidth, kTokens / 2 * kWidth));
  }
  halves.Step(0.01);
  const LayerCorrection a = whole.Mean(), b = halves.Mean();
  for (size_t i = 0; i < a.offset.size(); ++i) EXPECT_NEAR(a.offset[i], b.offset[i], 1e-4);
  for (size_t i = 0; i < a.up.size(); ++i) EXPECT_NEAR(a.up[i], b.up[i], 1e-4);
}

}  // namespace
}  // namespace kvblend::kv
