#include "server/cli/bench/statistics.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

TEST(StatisticsTest, MeanAndPercentilesMatchNumpy) {
  const std::vector<double> values = {15, 20, 35, 40, 50};
  EXPECT_DOUBLE_EQ(Mean(values), 32);
  EXPECT_DOUBLE_EQ(Percentile(values, 0.40), 29);  // numpy.percentile(values, 40)
  EXPECT_DOUBLE_EQ(Percentile(values, 0.95), 48);  // numpy.percentile(values, 95)
  EXPECT_DOUBLE_EQ(Percentile(values, 0.0), 15);
  EXPECT_DOUBLE_EQ(Percentile(values, 1.0), 50);
  EXPECT_DOUBLE_EQ(Median(std::vector<double>{4, 1, 3, 2}), 2.5);
  EXPECT_DOUBLE_EQ(Median(std::vector<double>{7}), 7);
}

TEST(StatisticsTest, NothingHasNoMean) {
  EXPECT_TRUE(std::isnan(Mean({})));
  EXPECT_TRUE(std::isnan(Median({})));
}

TEST(StatisticsTest, McNemarMatchesTheBinomialTest) {
  // scipy.stats.binomtest(min(lost, won), lost + won).pvalue
  EXPECT_DOUBLE_EQ(McNemarP(0, 0), 1);
  EXPECT_DOUBLE_EQ(McNemarP(4, 4), 1);
  EXPECT_NEAR(McNemarP(1, 0), 1, 1e-12);
  EXPECT_NEAR(McNemarP(5, 0), 0.0625, 1e-12);
  EXPECT_NEAR(McNemarP(0, 6), 0.03125, 1e-12);
  EXPECT_NEAR(McNemarP(8, 2), 0.109375, 1e-12);
  EXPECT_NEAR(McNemarP(3, 12), 0.03515625, 1e-12);
  EXPECT_NEAR(McNemarP(1000, 1000), 1, 1e-9);
  EXPECT_LT(McNemarP(1000, 1500), 1e-20);
}

std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> logs;
  for (const double p : probabilities) logs.push_back(static_cast<float>(std::log(p)));
  return logs;
}

TEST(StatisticsTest, KlMatchesClosedForms) {
  // The divergence of (1/2, 1/2) from (1/4, 3/4) is ln(4/3) / 2.
  EXPECT_NEAR(*KlDivergence(Logs({0.5, 0.5}), Logs({0.25, 0.75})), std::log(4.0 / 3) / 2, 1e-7);
  // The other way round: (1/4) ln(1/2) + (3/4) ln(3/2).
  EXPECT_NEAR(*KlDivergence(Logs({0.25, 0.75}), Logs({0.5, 0.5})),
              0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
  EXPECT_DOUBLE_EQ(*KlDivergence(Logs({0.2, 0.8}), Logs({0.2, 0.8})), 0);
}

TEST(StatisticsTest, KlLeavesOutWhatPExcludes) {
  const float nothing = -std::numeric_limits<float>::infinity();
  EXPECT_DOUBLE_EQ(*KlDivergence(std::vector<float>{0, nothing}, std::vector<float>{0, nothing}), 0);
  EXPECT_TRUE(std::isinf(*KlDivergence(Logs({0.5, 0.5}), std::vector<float>{0, nothing})));
}

TEST(StatisticsTest, KlOfRandomDistributionsIsNotNegative) {
  std::mt19937 random(42);
  std::normal_distribution<double> logit(0, 3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::vector<double>> distributions(2, std::vector<double>(300));
    for (auto& distribution : distributions) {
      double sum = 0;
      for (double& p : distribution) sum += p = std::exp(logit(random));
      for (double& p : distribution) p /= sum;
    }
    double expected = 0;
    for (size_t i = 0; i < 300; ++i) {
      expected += distributions[0][i] * std::log(distributions[0][i] / distributions[1][i]);
    }
    const double kl = *KlDivergence(Logs(distributions[0]), Logs(distributions[1]));
    EXPECT_GE(kl, 0);
    EXPECT_NEAR(kl, expected, 1e-5 * (1 + expected));  // float logs: relative 6e-8 of |log p| up to some 20
  }
}

TEST(StatisticsTest, KlRefusesDifferentVocabularies) {
  EXPECT_EQ(KlDivergence(Logs({0.5, 0.5}), Logs({1.0})).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(KlDivergence({}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvblend::server::cli
