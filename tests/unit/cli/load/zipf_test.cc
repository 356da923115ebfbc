#include "server/cli/load/zipf.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

constexpr int kCount = 6;
constexpr int kDraws = 60000;
constexpr double kChiSquare = 20.5;  // 5 degrees of freedom; exceeded by chance once in a thousand

double ChiSquare(const std::vector<int>& seen, const std::vector<double>& shares) {
  double sum = 0;
  for (size_t i = 0; i < seen.size(); ++i) {
    const double expected = kDraws * shares[i];
    sum += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  return sum;
}

// The first has the share of its weight; the second, by enumeration, that of its weight among those left.
TEST(ZipfTest, FirstAndSecondDrawsFollowTheWeights) {
  for (const double exponent : {0.0, 1.0, 2.5}) {
    std::vector<double> first(kCount), second(kCount);
    double whole = 0;
    for (int i = 0; i < kCount; ++i) whole += first[i] = std::pow(i + 1, -exponent);
    for (double& share : first) share /= whole;
    for (int i = 0; i < kCount; ++i) {
      for (int j = 0; j < kCount; ++j) {
        if (i != j) second[j] += first[i] * first[j] / (1 - first[i]);
      }
    }
    const ZipfChoice choice(kCount, exponent);
    std::mt19937_64 random(11);
    std::vector<int> seen_first(kCount), seen_second(kCount);
    for (int i = 0; i < kDraws; ++i) {
      const std::vector<int> drawn = choice.Draw(2, random);
      ++seen_first[drawn[0]];
      ++seen_second[drawn[1]];
    }
    EXPECT_LT(ChiSquare(seen_first, first), kChiSquare) << exponent;
    EXPECT_LT(ChiSquare(seen_second, second), kChiSquare) << exponent;
  }
}

TEST(ZipfTest, DrawsAreDifferentAndAtMostAll) {
  const ZipfChoice choice(5, 5);
  std::mt19937_64 random(1);
  for (const int wanted : {0, 3, 5, 9}) {
    const std::vector<int> drawn = choice.Draw(wanted, random);
    EXPECT_EQ(drawn.size(), std::min(wanted, 5));
    EXPECT_EQ(std::set<int>(drawn.begin(), drawn.end()).size(), drawn.size());
  }
}

}  // namespace
}  // namespace kvblend::server::cli
