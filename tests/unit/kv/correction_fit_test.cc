#include "engine/kv/correction_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace kvblend::kv {
namespace {

constexpr int64_t kChannels = 12;

/// Pairs whose y follows from x by a scale, an offset of the place in the chunk, a map of rank 2, and noise.
class CorrectionFitTest : public testing::Test {
 protected:
  CorrectionFitTest() {
    scale_ = Random(kChannels, 0.5f);
    offset_ = Random(kernels::kNumKvCorrectionPlaces * kChannels, 0.5f);
    for (auto* values : {&down_, &up_}) *values = Random(2 * kChannels, 0.5f);
  }

  std::vector<float> Random(int64_t count, float size) {
    std::normal_distribution<float> normal(0, size);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  void AddPairs(int64_t count, float noise, PairMoments& pairs) {
    std::vector<float> x = Random(count * kChannels, 1), y = Random(count * kChannels, noise);
    std::vector<int32_t> tokens(count);
    std::vector<float> weights(count);
    std::uniform_real_distribution<float> uniform(0.1f, 2);
    for (int64_t i = 0; i < count; ++i) {
      tokens[i] = static_cast<int32_t>(i);
      weights[i] = uniform(random_);
      const float* offset = &offset_[kernels::KvCorrectionPlace(i) * kChannels];
      float inner[2] = {0, 0};
      for (int64_t c = 0; c < kChannels; ++c) {
        x[i * kChannels + c] += 3 * offset_[c];  // means that are not zero
        for (int r = 0; r < 2; ++r) inner[r] += x[i * kChannels + c] * down_[2 * c + r];
      }
      for (int64_t c = 0; c < kChannels; ++c) {
        y[i * kChannels + c] += (1 + scale_[c]) * x[i * kChannels + c] + offset[c] + inner[0] * up_[c] +
                                inner[1] * up_[kChannels + c];
      }
    }
    pairs.Add({.stored = x, .fresh = y, .tokens = tokens, .weights = weights});
    x_.insert(x_.end(), x.begin(), x.end());
    y_.insert(y_.end(), y.begin(), y.end());
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    weights_.insert(weights_.end(), weights.begin(), weights.end());
  }

  /// Pairs that all count the same, of tokens 0, 1, ...
  LayerPairs Alike(const std::vector<float>& x, const std::vector<float>& y) {
    tokens_.resize(x.size() / kChannels);
    std::iota(tokens_.begin(), tokens_.end(), 0);
    weights_.assign(tokens_.size(), 1.0f);
    return {.stored = x, .fresh = y, .tokens = tokens_, .weights = weights_};
  }

  std::mt19937 random_{7};
  std::vector<float> scale_, offset_, down_, up_;
  std::vector<float> x_, y_, weights_;  // of all pairs
  std::vector<int32_t> tokens_;
};

TEST_F(CorrectionFitTest, FindsWhatThePairsWereMadeBy) {
  PairMoments pairs(kChannels), others(kChannels);
  for (int chunk = 0; chunk < 5; ++chunk) AddPairs(400, 0.01f, pairs);
  AddPairs(500, 0.01f, others);
  const auto left = [&](int32_t rank) {
    return ResidualShare(others, FitLayer(pairs, {.rank = rank, .ridge = 1e-6}), rank);
  };
  EXPECT_LT(left(kChannels), 1e-3);
  EXPECT_LT(left(3), 0.2 * left(0));
  EXPECT_LT(left(0), 1);
  for (int32_t rank = 1; rank <= kChannels; ++rank) EXPECT_LE(left(rank), left(rank - 1) + 1e-6) << rank;
}

TEST_F(CorrectionFitTest, DirectionsThatAreNotWorthTheirCostAreLeftOut) {
  PairMoments pairs(kChannels);  // of two directions and next to no noise
  for (int chunk = 0; chunk < 5; ++chunk) AddPairs(400, 0.01f, pairs);
  const auto used = [&](double least_gain) {
    const LayerCorrection fit = FitLayer(pairs, {.rank = kChannels, .ridge = 1e-6, .least_gain = least_gain});
    std::vector<double> lengths;
    for (int64_t j = 0; j < kChannels; ++j) {
      double squares = 0;
      for (int64_t c = 0; c < kChannels; ++c) squares += std::pow(fit.up[j * kChannels + c], 2);
      lengths.push_back(squares);
    }
    return lengths;
  };
  EXPECT_THAT(used(0), testing::Each(testing::DoubleNear(1, 1e-3)));
  const std::vector<double> worth_it = used(1e-3);
  for (int64_t j = 0; j < kChannels; ++j) {  // a whole step
    EXPECT_NEAR(worth_it[j], j < FitOptions::kRankStep ? 1 : 0, 1e-3) << j;
  }
  EXPECT_THAT(used(1), testing::Each(0));
}

TEST_F(CorrectionFitTest, TheFirstDirectionsAreWorthMost) {
  PairMoments pairs(kChannels), others(kChannels);
  for (int chunk = 0; chunk < 5; ++chunk) AddPairs(400, 0.01f, pairs);
  AddPairs(500, 0.01f, others);
  LayerCorrection fit = FitLayer(pairs, {.rank = kChannels, .ridge = 1e-6});
  std::fill(fit.up.begin() + 2 * kChannels, fit.up.end(), 0.0f);
  EXPECT_LT(ResidualShare(others, fit, kChannels), 0.05);  // there are two, and what the scale leaves of them
}

TEST_F(CorrectionFitTest, TheResidualIsWhatCorrectingEveryPairLeaves) {
  PairMoments pairs(kChannels);
  for (const int64_t count : {1, 50, 200}) AddPairs(count, 0.3f, pairs);
  constexpr int32_t kRank = 2;
  const LayerCorrection fit = FitLayer(pairs, {.rank = kRank, .ridge = 0.1});
  double before[2] = {0, 0}, after[2] = {0, 0};
  for (size_t i = 0, row = 0; i < tokens_.size(); ++i, row += kChannels) {
    const float* offset = &fit.offset[kernels::KvCorrectionPlace(tokens_[i]) * kChannels];
    for (int64_t c = 0; c < kChannels; ++c) {
      double value = fit.scale[c] * x_[row + c] + offset[c];
      for (int32_t r = 0; r < kRank; ++r) {
        double inner = 0;
        for (int64_t k = 0; k < kChannels; ++k) inner += x_[row + k] * fit.down[k * kRank + r];
        value += inner * fit.up[r * kChannels + c];
      }
      before[2 * c / kChannels] += weights_[i] * std::pow(y_[row + c] - x_[row + c], 2);
      after[2 * c / kChannels] += weights_[i] * std::pow(y_[row + c] - value, 2);
    }
  }
  EXPECT_NEAR(ResidualShare(pairs, fit, kRank), (after[0] / before[0] + after[1] / before[1]) / 2, 1e-4);
}

TEST_F(CorrectionFitTest, KeysMayBeCorrectedByAShare) {
  PairMoments pairs(kChannels);
  AddPairs(400, 0.01f, pairs);
  const LayerCorrection whole = FitLayer(pairs, {.rank = 2, .ridge = 1e-6});
  LayerCorrection none = whole, half = whole;
  ScaleKeyPart(0, 2, none);
  ScaleKeyPart(0.5, 2, half);
  for (int64_t c = 0; c < kChannels; ++c) {
    const bool is_key = c < kChannels / 2;
    EXPECT_FLOAT_EQ(none.scale[c], is_key ? 1 : whole.scale[c]);
    EXPECT_FLOAT_EQ(half.scale[c], is_key ? (1 + whole.scale[c]) / 2 : whole.scale[c]);
    for (int64_t p = 0; p < kernels::kNumKvCorrectionPlaces; ++p) {
      EXPECT_FLOAT_EQ(half.offset[p * kChannels + c], whole.offset[p * kChannels + c] / (is_key ? 2 : 1));
    }
  }
  // Half of a perfect correction leaves a quarter of the square, of half of the channels; none of it leaves
  // them all.
  EXPECT_NEAR(ResidualShare(pairs, whole, 2), 0, 0.01);
  EXPECT_NEAR(ResidualShare(pairs, half, 2), 0.125, 0.01);
  EXPECT_NEAR(ResidualShare(pairs, none, 2), 0.5, 0.01);
}

TEST_F(CorrectionFitTest, FewPairsTakeMoreRidge) {
  // The same pairs, but for how many they pass for.
  const std::vector<float> x = Random(60 * kChannels, 1), y = Random(60 * kChannels, 1);
  PairMoments few(kChannels), many(kChannels);
  LayerPairs pairs = Alike(x, y);
  few.Add(pairs);
  const std::vector<float> heavy(60, 1000.0f);
  pairs.weights = heavy;
  many.Add(pairs);
  const FitOptions options{.rank = kChannels, .ridge = 1e-6};
  const LayerCorrection careful = FitLayer(few, options), sure = FitLayer(many, options);
  EXPECT_GT(ResidualShare(many, careful, kChannels), 1.01 * ResidualShare(many, sure, kChannels));
}

TEST_F(CorrectionFitTest, NothingToLearnFromIsNoCorrection) {
  PairMoments pairs(kChannels);
  EXPECT_TRUE(FitLayer(pairs, {}).empty());
  const std::vector<float> x = Random(40 * kChannels, 1);
  pairs.Add(Alike(x, x));
  EXPECT_TRUE(FitLayer(pairs, {}).empty());
  EXPECT_EQ(ResidualShare(pairs, {}, 16), 1);
}

TEST_F(CorrectionFitTest, EndsWithNothingBetweenAnyTwoSteps) {
  PairMoments pairs(kChannels);
  AddPairs(400, 0.1f, pairs);
  const FitOptions options{.rank = 2};
  int steps = 0;
  const auto whole = FitLayer(pairs, options, [&] { return ++steps > 0; });
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->up, FitLayer(pairs, options).up);
  EXPECT_GE(steps, 3);
  for (int stop = 1; stop <= steps; ++stop) {
    int asked = 0;
    EXPECT_FALSE(FitLayer(pairs, options, [&] { return ++asked < stop; }).has_value()) << stop;
    EXPECT_EQ(asked, stop);
  }
}

TEST_F(CorrectionFitTest, ChannelsThatNeverChangeGetAnOffsetAlone) {
  PairMoments pairs(kChannels);
  std::vector<float> x = Random(60 * kChannels, 1), y = x;
  for (size_t i = 0; i < x.size(); i += kChannels) {
    x[i] = 2;
    y[i] = 5;
    x[i + 1] = y[i + 1] = 0;
  }
  pairs.Add(Alike(x, y));
  const LayerCorrection fit = FitLayer(pairs, {.rank = 4, .ridge = 0.1});
  for (const auto* values : {&fit.scale, &fit.offset, &fit.down, &fit.up}) {
    EXPECT_TRUE(
        std::all_of(values->begin(), values->end(), [](float value) { return std::isfinite(value); }));
  }
  EXPECT_LT(ResidualShare(pairs, fit, 4), 0.51);  // V's channels had nothing to gain
}

}  // namespace
}  // namespace kvblend::kv
