#include "engine/kv/running_moments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>

namespace kvblend::kv {
namespace {

constexpr int64_t kChannels = 8;
using Kind = RunningMoments::Kind;

class RunningMomentsTest : public testing::Test {
 protected:
  /// Pairs far from zero, as channels of K are.
  void Make(int64_t rows, std::vector<float>& x, std::vector<float>& y) {
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < rows * kChannels; ++i) {
      x.push_back(normal(random_) + 20.0f * static_cast<float>(i % kChannels));
      y.push_back(1.1f * x.back() + 0.3f * normal(random_) - 1);
    }
  }

  /// Of one channel's y on its x, in one sitting: slope and intercept.
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

  static void ExpectNear(const std::vector<double>& actual, const std::vector<double>& expected,
                         double tolerance) {
    ASSERT_EQ(actual.size(), expected.size());
    double norm = 0;
    for (const double value : expected) norm = std::max(norm, std::abs(value));
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], tolerance * norm) << i;
  }

  std::mt19937 random_{11};
};

TEST_F(RunningMomentsTest, AreTheMomentsOfAllPairs) {
  RunningMoments running(kChannels, Kind::kFull);
  PairMoments expected(kChannels);
  for (const int64_t rows : {1, 30, 64, 7}) {
    std::vector<float> x, y;
    Make(rows, x, y);
    running.Add(x, y, Ones(rows));
    expected.Add(x, y);
  }
  const PairMoments actual = running.Pairs();
  EXPECT_EQ(actual.count(), expected.count());
  ExpectNear(actual.sum_x(), expected.sum_x(), 1e-6);
  ExpectNear(actual.sum_d(), expected.sum_d(), 1e-6);
  ExpectNear(actual.xx(), expected.xx(), 1e-6);
  ExpectNear(actual.xd(), expected.xd(), 1e-6);
  ExpectNear(actual.dd(), expected.dd(), 1e-6);
}

TEST_F(RunningMomentsTest, AWeightIsACount) {
  std::vector<float> x, y, more_x, more_y;
  Make(20, x, y);
  Make(30, more_x, more_y);
  RunningMoments once(kChannels, Kind::kFull), twice(kChannels, Kind::kFull);
  for (int i = 0; i < 2; ++i) twice.Add(x, y, Ones(20));
  once.Add(x, y, std::vector<float>(20, 2));
  for (auto* moments : {&once, &twice}) moments->Add(more_x, more_y, Ones(30));
  EXPECT_DOUBLE_EQ(once.weight(), twice.weight());
  ExpectNear(once.Pairs().xx(), twice.Pairs().xx(), 1e-6);
  ExpectNear(once.Pairs().xd(), twice.Pairs().xd(), 1e-6);
  ExpectNear(once.Pairs().dd(), twice.Pairs().dd(), 1e-6);
}

TEST_F(RunningMomentsTest, PairsHaveWeightsOfTheirOwn) {
  std::vector<float> x, y, repeated_x, repeated_y, weights;
  Make(6, x, y);
  for (int64_t row = 0; row < 6; ++row) {
    weights.push_back(static_cast<float>(row + 1));
    for (int64_t times = 0; times <= row; ++times) {
      repeated_x.insert(repeated_x.end(), x.begin() + row * kChannels, x.begin() + (row + 1) * kChannels);
      repeated_y.insert(repeated_y.end(), y.begin() + row * kChannels, y.begin() + (row + 1) * kChannels);
    }
  }
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    RunningMoments weighted(kChannels, kind), repeated(kChannels, kind);
    weighted.Add(x, y, weights);
    repeated.Add(repeated_x, repeated_y, Ones(21));
    EXPECT_DOUBLE_EQ(weighted.weight(), repeated.weight());
    EXPECT_NEAR(weighted.Deviation(), repeated.Deviation(), 1e-6);
    const LayerCorrection fit = weighted.FitScales(), expected = repeated.FitScales();
    for (int64_t c = 0; c < kChannels; ++c) EXPECT_NEAR(fit.scale[c], expected.scale[c], 1e-5);
    if (kind == Kind::kFull) ExpectNear(weighted.Pairs().xd(), repeated.Pairs().xd(), 1e-6);
  }
}

TEST_F(RunningMomentsTest, WhatFadesCountsLess) {
  std::vector<float> x, y, more_x, more_y;
  Make(20, x, y);
  Make(30, more_x, more_y);
  RunningMoments faded(kChannels, Kind::kFull), expected(kChannels, Kind::kFull);
  faded.Add(x, y, Ones(20));
  faded.Fade(0.25);
  expected.Add(x, y, std::vector<float>(20, 0.25f));
  for (auto* moments : {&faded, &expected}) moments->Add(more_x, more_y, Ones(30));
  EXPECT_DOUBLE_EQ(faded.weight(), expected.weight());
  ExpectNear(faded.Pairs().xd(), expected.Pairs().xd(), 1e-6);
  EXPECT_NEAR(faded.Deviation(), expected.Deviation(), 1e-7);
}

TEST_F(RunningMomentsTest, ScalesAreFittedAsWithoutAMap) {
  std::vector<float> x, y, other_x, other_y;
  Make(200, x, y);
  Make(100, other_x, other_y);
  for (const Kind kind : {Kind::kFull, Kind::kDiagonal}) {
    RunningMoments pairs(kChannels, kind), others(kChannels, kind);
    pairs.Add(x, y, Ones(200));
    others.Add(other_x, other_y, Ones(100));
    PairMoments judge(kChannels);
    judge.Add(other_x, other_y);
    const LayerCorrection actual = pairs.FitScales();
    for (int64_t c = 0; c < kChannels; ++c) {
      const auto [scale, offset] = Regression(x, y, c);
      EXPECT_NEAR(actual.scale[c], scale, 1e-5) << c;
      EXPECT_NEAR(actual.offset[c], offset, 1e-3) << c;  // the scale's error times the mean
    }
    EXPECT_NEAR(others.ResidualShareOfScales(actual), ResidualShare(judge, actual, 0), 1e-3);
    EXPECT_LT(others.ResidualShareOfScales(actual), 0.2);
    EXPECT_EQ(others.ResidualShareOfScales({}), 1);
  }
}

TEST_F(RunningMomentsTest, DeviationIsRelativeToFreshKv) {
  RunningMoments moments(2, Kind::kDiagonal);
  EXPECT_EQ(moments.Deviation(), 0);
  EXPECT_TRUE(moments.FitScales().empty());
  const std::vector<float> x = {1, 2, 3, 4}, y = {2, 2, 4, 4};  // K's channel moves by 1, V's does not
  moments.Add(x, y, {0.5f, 0.5f});
  EXPECT_NEAR(moments.Deviation(), (2.0 / (4 + 16)) / 2, 1e-6);
}

}  // namespace
}  // namespace kvblend::kv
