#include "server/cli/load/rate_search.h"

#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

/// Asks a server that bears every rate up to `highest`.
RateSearch Searched(double highest, double first) {
  RateSearch search(first);
  while (const std::optional<double> rate = search.Next()) search.Tell(*rate <= highest);
  return search;
}

TEST(RateSearchTest, FindsTheHighestToWithinATenth) {
  for (const double highest : {0.013, 0.4, 1.0, 3.3, 77.0}) {
    for (const double first : {0.1, 1.0, 5.0}) {
      const RateSearch search = Searched(highest, first);
      EXPECT_LE(search.highest(), highest);
      ASSERT_TRUE(search.refused().has_value());
      EXPECT_GT(*search.refused(), highest);
      EXPECT_LE(*search.refused(), search.highest() * 1.1 * (1 + 1e-9)) << highest << " from " << first;
    }
  }
}

TEST(RateSearchTest, EndsWhereNothingOrEverythingIsBorne) {
  EXPECT_EQ(Searched(0, 1).highest(), 0);
  const RateSearch all = Searched(1e30, 1);
  EXPECT_FALSE(all.refused().has_value());
  EXPECT_EQ(all.highest(), 1 << (RateSearch::kMaxTries - 1));
}

}  // namespace
}  // namespace kvblend::server::cli
