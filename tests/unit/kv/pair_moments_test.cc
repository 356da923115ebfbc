#include "engine/kv/pair_moments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "engine/kv/correction_fit.h"

namespace kvblend::kv {
namespace {

constexpr int64_t kChannels = 8;
using Kind = PairMoments::Kind;

class PairMomentsTest : public testing::Test {
 protected:
  /// Pairs far from zero, as channels of K are.
  void Make(int64_t rows, std::vector<float>& x, std::vector<float>& y) {
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < rows * kChannels; ++i) {
      x.push_back(normal(random_) + 20.0f * static_cast<float>(i % kChannels));
      y.push_back(1.1f * x.back() + 0.3f * normal(random_) - 1);
    }
  }

  /// Slope and intercept of one channel's y on its x, computed in one pass over all values.
  static std::pair<double, double> Regression(const std::vector<float>& x, const std::vector<float>& y,
                                              int64_t c) {
    double n = 0, sum_x = 0, sum_y = 0, xx = 0, xy = 0;
    for (size_t i = c; i < x.size(); i += kChannels, ++n) {
      sum_x += x[i];
      sum_y += y[i];
    }
    for (size_t i = c; i < x.size(); i += kChannels) {
      xx += std::pow(x[i] - sum_x / n, 2);
      xy += (x[i] - sum_x / n) * (y[i] - sum_y / n);
    }
    return {xy / xx, sum_y / n - xy / xx * sum_x / n};
  }

  static std::vector<float> Ones(int64_t rows) { return std::vector<float>(rows, 1); }

  /// Pairs of tokens 0, 1, ... unless others are named.
  static void Add(PairMoments& moments, const std::vector<float>& x, const std::vector<float>& y,
                  const std::vector<float>& weights, std::vector<int32_t> tokens = {}) {
    if (tokens.empty()) {
      tokens.resize(weights.size());
      std::iota(tokens.begin(), tokens.end(), 0);
    }
    moments.Add({.stored = x, .fresh = y, .tokens = tokens, .weights = weights});
  }

  struct ManyPairs {
    std::vector<float> x, y, weights;
    std::vector<int32_t> tokens;
    double counts = 1;
  };

  /// Two passes over all pairs, in double.
  static void ExpectMomentsOf(const std::vector<ManyPairs>& all, const PairMoments& actual) {
    std::vector<double> xx(kChannels * kChannels), xd(xx), dd(kChannels);
    int64_t count = 0;
    for (int64_t p = 0; p < kernels::kNumKvCorrectionPlaces; ++p) {
      const auto for_rows = [&](auto visit) {
        for (const ManyPairs& pairs : all) {
          for (size_t i = 0; i < pairs.tokens.size(); ++i) {
            if (kernels::KvCorrectionPlace(pairs.tokens[i]) != p || pairs.weights[i] == 0) continue;
            visit(&pairs.x[i * kChannels], &pairs.y[i * kChannels], pairs.counts * pairs.weights[i]);
          }
        }
      };
      double weight = 0;
      std::vector<double> mean_x(kChannels), mean_d(kChannels);
      for_rows([&](const float*, const float*, double w) {
        weight += w;
        ++count;
      });
      for_rows([&](const float* x, const float* y, double w) {
        for (int64_t c = 0; c < kChannels; ++c) {
          mean_x[c] += w / weight * x[c];
          mean_d[c] += w / weight * (double{y[c]} - x[c]);
        }
      });
      for_rows([&](const float* x, const float* y, double w) {
        for (int64_t c = 0; c < kChannels; ++c) {
          const double d = double{y[c]} - x[c] - mean_d[c];
          dd[c] += w * d * d;
          for (int64_t r = 0; r < kChannels; ++r) {
            xx[r * kChannels + c] += w * (x[r] - mean_x[r]) * (x[c] - mean_x[c]);
            xd[r * kChannels + c] += w * (x[r] - mean_x[r]) * d;
          }
        }
      });
      EXPECT_NEAR(actual.places()[p].weight, weight, 1e-12 * weight);
      ExpectNear(actual.places()[p].mean_x, mean_x, 1e-6);
      ExpectNear(actual.places()[p].mean_d, mean_d, 1e-5);
    }
    EXPECT_EQ(actual.count(), count);
    ExpectNear(actual.dd(), dd, 1e-4);
    if (actual.kind() == Kind::kFull) {
      ExpectNear(actual.Xx(), xx, 1e-4);
      ExpectNear(Doubles(actual.xd()), xd, 1e-4);
    }
    std::vector<double> variances, covariances, expected_variances, expected_covariances;
    for (int64_t c = 0; c < kChannels; ++c) {
      variances.push_back(actual.Variance(c));
      covariances.push_back(actual.Covariance(c));
      expected_variances.push_back(xx[c * (kChannels + 1)]);
      expected_covariances.push_back(xd[c * (kChannels + 1)]);
    }
    ExpectNear(variances, expected_variances, 1e-4);
    ExpectNear(covariances, expected_covariances, 1e-4);
  }

  static std::vector<double> Doubles(const std::vector<float>& values) {
    return {values.begin(), values.end()};
  }

  static void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                         double tolerance) {
    ASSERT_EQ(actual.size(), expected.size());
    double norm = 0;
    for (const double value : expected) norm = std::max(norm, std::abs(value));
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance * norm) << i;
  }

  std::mt19937 random_{11};
};

TEST_F(PairMomentsTest, AreTheMomentsOfAllPairs) {
  PairMoments moments(kChannels);
  std::vector<float> all_x, all_y;
  std::vector<int32_t> all_tokens;
  for (const int64_t rows : {1, 30, 64, 7}) {
    std::vector<float> x, y;
    Make(rows, x, y);
    Add(moments, x, y, Ones(rows));
    all_x.insert(all_x.end(), x.begin(), x.end());
    all_y.insert(all_y.end(), y.begin(), y.end());
    for (int32_t token = 0; token < rows; ++token) all_tokens.push_back(token);
  }
  EXPECT_EQ(moments.count(), 102);
  ExpectMomentsOf({{.x = all_x, .y = all_y, .weights = Ones(102), .tokens = all_tokens}}, moments);
}

/// One overflow in a prompt, or one damaged chunk, must not end learning for good.
TEST_F(PairMomentsTest, PairsThatAreNoNumbersAreLeftOut) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x, y;
  Make(30, x, y);
  std::vector<float> bad_x = x, bad_y = y, bad_weights = Ones(30), weights = Ones(30);
  int64_t row = 2;
  for (const float bad : {kNan, kInf, -kInf, 3e38f, -1e20f}) {
    bad_x[row++ * kChannels + 3] = bad;
    bad_y[row++ * kChannels + 7] = bad;
  }
  bad_weights[row++] = kNan;
  bad_weights[row++] = kInf;
  std::fill(weights.begin() + 2, weights.begin() + row, 0.0f);
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    PairMoments actual(kChannels, kind), expected(kChannels, kind);
    Add(actual, bad_x, bad_y, bad_weights);
    Add(expected, x, y, weights);
    EXPECT_EQ(actual.count(), 30 - 12);
    std::string bytes, expected_bytes;
    actual.AppendTo(bytes);
    expected.AppendTo(expected_bytes);
    EXPECT_EQ(bytes, expected_bytes);
  }
}

TEST_F(PairMomentsTest, OfTheLargestPairsTheSumsAreNumbers) {
  std::vector<float> x, y;
  Make(30, x, y);
  for (float& value : x) value = std::copysign(1e15f, value - 10);
  for (float& value : y) value = std::copysign(1e15f, value - 60);
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    PairMoments moments(kChannels, kind);
    Add(moments, x, y, std::vector<float>(30, 1e6f));  // more than replicas together ever have
    EXPECT_EQ(moments.count(), 30);
    std::string bytes;
    moments.AppendTo(bytes);
    std::string_view rest = bytes;
    EXPECT_TRUE(PairMoments(kChannels, kind).TakeFrom(rest).ok());
  }
}

TEST_F(PairMomentsTest, AWeightIsACount) {
  std::vector<float> x, y, more_x, more_y;
  Make(20, x, y);
  Make(30, more_x, more_y);
  PairMoments once(kChannels, Kind::kFull), twice(kChannels, Kind::kFull);
  for (int i = 0; i < 2; ++i) Add(twice, x, y, Ones(20));
  Add(once, x, y, std::vector<float>(20, 2));
  for (auto* moments : {&once, &twice}) Add(*moments, more_x, more_y, Ones(30));
  EXPECT_DOUBLE_EQ(once.weight(), twice.weight());
  ExpectNear(once.Xx(), twice.Xx(), 1e-5);
  ExpectNear(Doubles(once.xd()), Doubles(twice.xd()), 1e-5);
  ExpectNear(once.dd(), twice.dd(), 1e-5);
}

TEST_F(PairMomentsTest, PairsHaveWeightsOfTheirOwn) {
  std::vector<float> x, y, repeated_x, repeated_y, weights;
  std::vector<int32_t> tokens;
  Make(6, x, y);
  for (int64_t row = 0; row < 6; ++row) {
    weights.push_back(static_cast<float>(row + 1));
    for (int64_t times = 0; times <= row; ++times) {
      tokens.push_back(static_cast<int32_t>(row));
      repeated_x.insert(repeated_x.end(), x.begin() + row * kChannels, x.begin() + (row + 1) * kChannels);
      repeated_y.insert(repeated_y.end(), y.begin() + row * kChannels, y.begin() + (row + 1) * kChannels);
    }
  }
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    PairMoments weighted(kChannels, kind), repeated(kChannels, kind);
    Add(weighted, x, y, weights);
    Add(repeated, repeated_x, repeated_y, Ones(21), tokens);
    EXPECT_DOUBLE_EQ(weighted.weight(), repeated.weight());
    EXPECT_NEAR(weighted.Deviation(), repeated.Deviation(), 1e-6);
    const LayerCorrection fit = FitLayer(weighted, {.rank = 0}), expected = FitLayer(repeated, {.rank = 0});
    for (int64_t c = 0; c < kChannels; ++c) EXPECT_NEAR(fit.scale[c], expected.scale[c], 1e-5);
    if (kind == Kind::kFull) ExpectNear(Doubles(weighted.xd()), Doubles(repeated.xd()), 1e-5);
  }
}

TEST_F(PairMomentsTest, WhatFadesCountsLess) {
  std::vector<float> x, y, more_x, more_y;
  Make(20, x, y);
  Make(30, more_x, more_y);
  PairMoments faded(kChannels, Kind::kFull), expected(kChannels, Kind::kFull);
  Add(faded, x, y, Ones(20));
  faded.Fade(0.25);
  Add(expected, x, y, std::vector<float>(20, 0.25f));
  for (auto* moments : {&faded, &expected}) Add(*moments, more_x, more_y, Ones(30));
  EXPECT_DOUBLE_EQ(faded.weight(), expected.weight());
  ExpectNear(Doubles(faded.xd()), Doubles(expected.xd()), 1e-5);
  EXPECT_NEAR(faded.Deviation(), expected.Deviation(), 1e-7);
}

/// Chunks are dealt out at random; each share fades at random times. What comes of merging them is computed
/// in double, in one sitting, over all pairs with what each of them counts in the end.
TEST_F(PairMomentsTest, MergedTheyAreThoseOfAllPairsInOneWhateverHasFaded) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    random_.seed(seed);
    const auto pick = [&](int64_t below) {
      return std::uniform_int_distribution<int64_t>(0, below - 1)(random_);
    };
    const size_t num_shares = 1 + pick(5);
    std::vector<std::vector<ManyPairs>> seen(num_shares);
    std::vector<PairMoments> full(num_shares, PairMoments(kChannels)),
        diagonal(num_shares, PairMoments(kChannels, Kind::kDiagonal));
    for (int64_t chunk = pick(20); chunk >= 0; --chunk) {
      const size_t share = pick(static_cast<int64_t>(num_shares));
      if (pick(4) == 0) {
        const double factor = 0.05 + 0.9 * static_cast<double>(pick(100)) / 100;
        full[share].Fade(factor);
        diagonal[share].Fade(factor);
        for (ManyPairs& pairs : seen[share]) pairs.counts *= factor;
      }
      ManyPairs pairs;
      const int64_t rows = 1 + pick(40);
      Make(rows, pairs.x, pairs.y);
      for (int64_t row = 0; row < rows; ++row) {
        pairs.tokens.push_back(static_cast<int32_t>(pick(700)));
        pairs.weights.push_back(static_cast<float>(pick(4)) / 2);  // some count nothing
      }
      for (auto* moments : {&full[share], &diagonal[share]}) {
        Add(*moments, pairs.x, pairs.y, pairs.weights, pairs.tokens);
      }
      seen[share].push_back(std::move(pairs));
    }
    std::vector<ManyPairs> all;
    for (const auto& share : seen) all.insert(all.end(), share.begin(), share.end());
    std::shuffle(full.begin(), full.end(), random_);  // the order says nothing
    PairMoments merged(kChannels), merged_diagonal(kChannels, Kind::kDiagonal);
    for (const PairMoments& share : full) merged.Merge(share);
    for (const PairMoments& share : diagonal) merged_diagonal.Merge(share);
    ExpectMomentsOf(all, merged);
    ExpectMomentsOf(all, merged_diagonal);
  }
}

TEST_F(PairMomentsTest, MergingNothingChangesNoBit) {
  std::vector<float> x, y;
  Make(20, x, y);
  PairMoments moments(kChannels), nothing(kChannels), from_nothing(kChannels);
  Add(moments, x, y, Ones(20));
  const auto bytes = [](const PairMoments& of) {
    std::string encoded;
    of.AppendTo(encoded);
    return encoded;
  };
  const std::string before = bytes(moments);
  moments.Merge(nothing);
  EXPECT_EQ(bytes(moments), before);
  from_nothing.Merge(moments);
  EXPECT_EQ(bytes(from_nothing), before);
}

TEST_F(PairMomentsTest, ScalesAreFittedAsWithoutAMap) {
  std::vector<float> x, y, other_x, other_y;
  Make(200, x, y);
  Make(100, other_x, other_y);
  const std::vector<int32_t> tokens(200, 600), other_tokens(100, 600);  // all in one place
  PairMoments judge(kChannels);
  Add(judge, other_x, other_y, Ones(100), other_tokens);
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    PairMoments pairs(kChannels, kind), others(kChannels, kind);
    Add(pairs, x, y, Ones(200), tokens);
    Add(others, other_x, other_y, Ones(100), other_tokens);
    const LayerCorrection actual = FitLayer(pairs, {.rank = 0});
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto [scale, offset] = Regression(x, y, c);
      EXPECT_NEAR(actual.scale[c], scale, 1e-5) << c;
      EXPECT_NEAR(actual.offset[7 * kChannels + c], offset, 1e-3) << c;  // the scale's error times the mean
    }
    EXPECT_NEAR(ResidualShare(others, actual, 0), ResidualShare(judge, actual, 0), 1e-5);
    EXPECT_LT(ResidualShare(others, actual, 0), 0.2);
    EXPECT_EQ(ResidualShare(others, {}, 0), 1);
  }
  EXPECT_EQ(FittedRank(PairMoments(kChannels, Kind::kDiagonal), {.rank = 3}), 0);
}

TEST_F(PairMomentsTest, WeightsAreTheRootOfTheAttention) {
  const std::vector<float> mass = {0, 1, 1, 2, 16}, weights = WeightsOfMass(mass);
  EXPECT_NEAR(weights[0], std::sqrt(0.05 / 1.05), 1e-6);  // nobody looks at it, and it counts a little
  EXPECT_EQ(weights[1], weights[2]);
  EXPECT_NEAR(weights[4] / weights[3], std::sqrt((16 / 4. + 0.05) / (2 / 4. + 0.05)), 1e-6);
  EXPECT_THAT(WeightsOfMass({3, 3, 3}), testing::Each(1.0f));
  EXPECT_THAT(WeightsOfMass({0, 0}), testing::Each(1.0f));
  EXPECT_TRUE(WeightsOfMass({}).empty());
}

TEST_F(PairMomentsTest, SumsOfSquaresThatNoPairsGiveAreRefused) {
  std::vector<float> x, y;
  Make(20, x, y);
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    PairMoments moments(kChannels, kind), read(kChannels, kind);
    Add(moments, x, y, Ones(20));
    std::string bytes;
    moments.AppendTo(bytes);
    ASSERT_EQ(static_cast<int64_t>(bytes.size()), PairMoments::EncodedBytes(kChannels, kind));
    const size_t dd =
        sizeof(int64_t) + kernels::kNumKvCorrectionPlaces * (1 + 2 * kChannels) * sizeof(double);
    for (const size_t at :
         {dd + 7, dd + kChannels * sizeof(double) + 3}) {  // the signs of the first of dd and xx
      std::string bad = bytes;
      bad[at] = static_cast<char>(bad[at] | 0x80);
      std::string_view rest = bad;
      EXPECT_THAT(std::string(read.TakeFrom(rest).message()), testing::HasSubstr("a sum of squares is -"));
    }
    std::string_view rest = bytes;
    EXPECT_TRUE(read.TakeFrom(rest).ok());
  }
}

TEST_F(PairMomentsTest, DeviationIsRelativeToFreshKv) {
  PairMoments moments(2, Kind::kDiagonal);
  EXPECT_EQ(moments.Deviation(), 0);
  EXPECT_TRUE(FitLayer(moments, {}).empty());
  const std::vector<float> x = {1, 2, 3, 4}, y = {2, 2, 4, 4};  // K's channel moves by 1, V's does not
  Add(moments, x, y, {0.5f, 0.5f}, {700, 701});
  EXPECT_NEAR(moments.Deviation(), (2.0 / (4 + 16)) / 2, 1e-6);
}

}  // namespace
}  // namespace kvblend::kv
