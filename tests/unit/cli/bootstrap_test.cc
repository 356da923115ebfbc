// Intervals against what is known of them, and planted differences.
#include "server/cli/bench/bootstrap.h"

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/cli/bench/statistics.h"

namespace kvblend::server::cli {
namespace {

std::vector<double> Normal(size_t n, double mean, double deviation, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values(n);
  for (double& value : values) value = normal(random);
  return values;
}

TEST(BootstrapTest, TheIntervalOfAMeanIsThatOfTheNormalDistribution) {
  const std::vector<double> values = Normal(400, 5, 2, 1);
  double variance = 0;
  for (const double value : values) variance += std::pow(value - Mean(values), 2) / 400;
  const double error = std::sqrt(variance / 400);
  const Estimate estimate = Bootstrap(400).OfMean(values);
  EXPECT_DOUBLE_EQ(estimate.value, Mean(values));
  // The ends are quantiles of 4,000 draws: known to about 0.04 standard errors.
  EXPECT_NEAR(estimate.interval.low, Mean(values) - 1.96 * error, 0.15 * error);
  EXPECT_NEAR(estimate.interval.high, Mean(values) + 1.96 * error, 0.15 * error);
}

TEST(BootstrapTest, IntervalsHoldTheTruthAboutAsOftenAsTheyPromise) {
  int means = 0;
  int ratios = 0;
  constexpr int kRounds = 300;
  const Bootstrap bootstrap(40);
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<double> a = Normal(40, 3, 1, 1000 + round);
    std::vector<double> b = Normal(40, 2, 0.5, 5000 + round);
    const Estimate mean = bootstrap.OfMean(a);
    means += mean.interval.low <= 3 && 3 <= mean.interval.high ? 1 : 0;
    const Estimate ratio = bootstrap.OfRatio(a, b);
    ratios += ratio.interval.low <= 1.5 && 1.5 <= ratio.interval.high ? 1 : 0;
  }
  // 95%, less what the percentile method loses with 40 values (1 to 2%), within four standard deviations of
  // 300 trials.
  EXPECT_GT(means, 0.88 * kRounds);
  EXPECT_GT(ratios, 0.88 * kRounds);
  EXPECT_LT(means, 0.99 * kRounds);
  EXPECT_LT(ratios, 0.99 * kRounds);
}

TEST(BootstrapTest, APlantedDifferenceIsSeenBecauseQuestionsArePaired) {
  // Questions differ by a factor of thousands, the rows by 20%: only pairs show it.
  std::vector<double> b = Normal(60, 0, 2, 7);
  for (double& value : b) value = std::exp(value);
  std::vector<double> a;
  for (const double value : b) a.push_back(0.8 * value);
  const Bootstrap bootstrap(60);
  const Estimate paired = bootstrap.OfRatio(a, b);
  EXPECT_NEAR(paired.value, 0.8, 1e-12);
  EXPECT_NEAR(paired.interval.low, 0.8, 1e-12);
  EXPECT_NEAR(paired.interval.high, 0.8, 1e-12);
  // The same values of other questions: the pairing is gone, and with it the evidence.
  std::rotate(a.begin(), a.begin() + 17, a.end());
  const Estimate unpaired = bootstrap.OfRatio(a, b);
  EXPECT_NEAR(unpaired.value, 0.8, 1e-12);
  EXPECT_LT(unpaired.interval.low, 0.6);
  EXPECT_GT(unpaired.interval.high, 1.2);
}

TEST(BootstrapTest, TheSameDrawsEveryTime) {
  const std::vector<double> values = Normal(30, 0, 1, 3);
  const Estimate first = Bootstrap(30).OfMean(values);
  const Estimate second = Bootstrap(30).OfMean(values);
  EXPECT_EQ(first.interval.low, second.interval.low);
  EXPECT_EQ(first.interval.high, second.interval.high);
}

TEST(BootstrapTest, MediansAreResampledToo) {
  std::vector<double> values(101);
  std::iota(values.begin(), values.end(), 0);
  const Estimate median = Bootstrap(101).OfMedian(values);
  EXPECT_EQ(median.value, 50);
  // Order statistics: n/2 -+ 1.96 sqrt(n)/2.
  EXPECT_NEAR(median.interval.low, 50 - 9.8, 1.5);
  EXPECT_NEAR(median.interval.high, 50 + 9.8, 1.5);
}

TEST(BootstrapTest, NoIntervalWhereThereIsNoEvidence) {
  const Estimate one = Bootstrap(1).OfMean(std::vector<double>{3});
  EXPECT_EQ(one.value, 3);
  EXPECT_TRUE(std::isnan(one.interval.low));
  EXPECT_TRUE(std::isnan(Bootstrap(0).OfMean({}).value));
  const std::vector<double> unmeasured = {1, NAN, 2};
  EXPECT_TRUE(std::isnan(Bootstrap(3).OfMean(unmeasured).value));
  EXPECT_TRUE(std::isnan(Bootstrap(3).OfMedian(unmeasured).value));
  // 0 / 0 in every draw that misses the last question.
  const std::vector<double> mostly_zero = {0, 0, 1};
  const Estimate ratio = Bootstrap(3).OfRatio(mostly_zero, mostly_zero);
  EXPECT_EQ(ratio.value, 1);
  EXPECT_TRUE(std::isnan(ratio.interval.low));
}

}  // namespace
}  // namespace kvblend::server::cli
