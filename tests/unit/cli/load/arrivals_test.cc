#include "server/cli/load/arrivals.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ArrivalsTest, PoissonIntervalsAreExponential) {
  constexpr double kRate = 4;
  constexpr int kCount = 20000;
  std::mt19937_64 random(7);
  const std::vector<double> times = PoissonArrivals(kRate, {.seconds = 1e9, .requests = kCount}, random);
  ASSERT_EQ(times.size(), kCount);
  std::vector<double> gaps;
  for (size_t i = 0; i < times.size(); ++i) gaps.push_back(times[i] - (i == 0 ? 0 : times[i - 1]));
  std::sort(gaps.begin(), gaps.end());
  // Kolmogorov and Smirnov's distance from 1 - exp(-rate t); 1.63 / sqrt(n) is exceeded by chance once in a
  // hundred.
  double distance = 0;
  for (int i = 0; i < kCount; ++i) {
    const double expected = 1 - std::exp(-kRate * gaps[i]);
    distance = std::max(
        {distance, std::abs(expected - double(i) / kCount), std::abs(expected - double(i + 1) / kCount)});
  }
  EXPECT_LT(distance, 1.63 / std::sqrt(kCount));
}

TEST(ArrivalsTest, PoissonEndsWithTheTimeAndScalesWithTheRate) {
  std::mt19937_64 random(3), same(3), faster(3);
  const std::vector<double> times = PoissonArrivals(10, {.seconds = 100}, random);
  EXPECT_NEAR(double(times.size()), 1000, 4 * std::sqrt(1000));
  EXPECT_LT(times.back(), 100);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_EQ(times, PoissonArrivals(10, {.seconds = 100}, same));
  const std::vector<double> twice = PoissonArrivals(20, {.seconds = 50}, faster);
  ASSERT_EQ(twice.size(), times.size());
  EXPECT_DOUBLE_EQ(twice.back() * 2, times.back());
}

TEST(ArrivalsTest, FixedOnesAreEvenlySpaced) {
  EXPECT_THAT(FixedArrivals(4, {.seconds = 1}), ElementsAre(0, 0.25, 0.5, 0.75));
  EXPECT_THAT(FixedArrivals(4, {.seconds = 100, .requests = 2}), ElementsAre(0, 0.25));
}

TEST(ArrivalsTest, TracesAreReadLineByLine) {
  EXPECT_THAT(*ParseArrivalTrace("# seconds\n0\n\n 0.5 \n0.5\r\n2e1\n"), ElementsAre(0, 0.5, 0.5, 20));
  for (const auto& [text, part] : std::vector<std::pair<std::string, std::string>>{
           {"1\n0.5\n", "line 2 of the trace is '0.5'; allowed: times in ascending order"},
           {"-1\n", "line 1 of the trace is '-1'; allowed: seconds from the start, 0 or more"},
           {"inf\n", "line 1"},
           {"soon\n", "'soon'"},
           {"# nothing\n", "holds no times"}}) {
    EXPECT_THAT(std::string(ParseArrivalTrace(text).status().message()), HasSubstr(part));
  }
}

}  // namespace
}  // namespace kvblend::server::cli
