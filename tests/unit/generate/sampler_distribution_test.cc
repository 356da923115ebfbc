// Statistics of the draws against the distribution that the documented steps define, by chi-square. Seeds are
// fixed, so each case either always passes or always fails.
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/generate/sampler.h"
#include "gtest/gtest.h"
#include "tests/unit/generate/logits_of.h"

namespace kvblend::generate {
namespace {

constexpr int kDraws = 40000;

/// Pearson's statistic over the tokens with expected[i] > 0; infinite when a token came that should not.
double ChiSquare(const SamplingOptions& options, const std::vector<float>& logits,
                 const std::vector<double>& expected, const std::vector<int32_t>& accepted = {}) {
  Sampler sampler = Sampler::Create(options, static_cast<int32_t>(logits.size())).value();
  for (int32_t token : accepted) sampler.Accept(token);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.Sample(logits).value().token_id];
  const double total = std::accumulate(expected.begin(), expected.end(), 0.0);
  double statistic = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double mean = kDraws * expected[i] / total;
    if (mean == 0 && counts[i] > 0) return INFINITY;
    if (mean > 0) statistic += (counts[i] - mean) * (counts[i] - mean) / mean;
  }
  return statistic;
}

/// The 99.9% point of chi-square with `degrees` degrees of freedom (Wilson and Hilferty's approximation).
double Limit(int degrees) {
  const double h = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1 - h + 3.0902 * std::sqrt(h), 3);
}

SamplingOptions Drawing(double temperature, uint64_t seed) {
  SamplingOptions options;
  options.temperature = temperature;
  options.seed = seed;
  return options;
}

TEST(SamplerDistributionTest, TemperatureOneIsTheModelsDistribution) {
  const std::vector<double> p = {0.4, 0.3, 0.15, 0.1, 0.05};
  EXPECT_LT(ChiSquare(Drawing(1, 101), LogitsOf(p), p), Limit(4));
}

TEST(SamplerDistributionTest, TheTestCanFail) {
  EXPECT_GT(ChiSquare(Drawing(1, 101), LogitsOf({0.4, 0.3, 0.15, 0.1, 0.05}), {0.38, 0.32, 0.15, 0.1, 0.05}),
            Limit(4));
}

TEST(SamplerDistributionTest, TemperatureIsAPowerOfTheProbabilities) {
  const std::vector<double> p = {0.4, 0.3, 0.15, 0.1, 0.05};
  for (double temperature : {0.5, 2.0, 10.0}) {
    std::vector<double> expected;
    for (double value : p) expected.push_back(std::pow(value, 1 / temperature));
    EXPECT_LT(ChiSquare(Drawing(temperature, 102), LogitsOf(p), expected), Limit(4)) << temperature;
  }
}

TEST(SamplerDistributionTest, FiltersKeepTheOddsOfWhatTheyKeep) {
  const std::vector<double> p = {0.05, 0.4, 0.1, 0.3, 0.15};
  SamplingOptions top_k = Drawing(1, 103);
  top_k.top_k = 3;
  EXPECT_LT(ChiSquare(top_k, LogitsOf(p), {0, 0.4, 0, 0.3, 0.15}), Limit(2));
  SamplingOptions top_p = Drawing(1, 104);
  top_p.top_p = 0.8;
  EXPECT_LT(ChiSquare(top_p, LogitsOf(p), {0, 0.4, 0, 0.3, 0.15}), Limit(2));
  SamplingOptions min_p = Drawing(1, 105);
  min_p.min_p = 0.2;
  EXPECT_LT(ChiSquare(min_p, LogitsOf(p), {0, 0.4, 0.1, 0.3, 0.15}), Limit(3));
}

TEST(SamplerDistributionTest, PenaltyChangesTheDistributionAsPublished) {
  SamplingOptions options = Drawing(1, 106);
  options.repetition_penalty = 1.5;
  const std::vector<float> logits = {1.5f, -1.0f, 0.5f, 0.0f};
  const std::vector<double> expected = {std::exp(1.0), std::exp(-1.5), std::exp(0.5), 1.0};
  EXPECT_LT(ChiSquare(options, logits, expected, {0, 1, 3, 1}), Limit(3));
}

TEST(SamplerDistributionTest, ManyTokens) {
  std::vector<double> p;
  for (int i = 0; i < 500; ++i) p.push_back(1.0 + i % 7);
  EXPECT_LT(ChiSquare(Drawing(1, 107), LogitsOf(p), p), Limit(499));
}

}  // namespace
}  // namespace kvblend::generate
