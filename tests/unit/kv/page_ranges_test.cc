#include "engine/kv/pages/page_ranges.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::kv {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(PageRangesTest, TakesTheSmallestRangeThatIsLargeEnough) {
  PageRanges ranges;
  ranges.Add(0, 3);
  ranges.Add(10, 5);
  ranges.Add(20, 4);
  EXPECT_THAT(ranges.Take(4), ElementsAre(20, 21, 22, 23));
  EXPECT_THAT(ranges.Take(2), ElementsAre(0, 1));
  EXPECT_THAT(ranges.Take(4), ElementsAre(10, 11, 12, 13));
  EXPECT_EQ(ranges.num_pages(), 2);
}

TEST(PageRangesTest, TakesTheLargestOnesWhereNoneIsLargeEnough) {
  PageRanges ranges;
  ranges.Add(0, 2);
  ranges.Add(10, 3);
  ranges.Add(20, 1);
  EXPECT_THAT(ranges.Take(5), ElementsAre(10, 11, 12, 0, 1));
  EXPECT_THAT(ranges.Take(1), ElementsAre(20));
  EXPECT_THAT(ranges.Take(0), IsEmpty());
}

TEST(PageRangesTest, NeighboursBecomeOneRange) {
  PageRanges ranges;
  ranges.Add(4, 2);
  ranges.Add(0, 2);
  ranges.Add(8, 1);
  ranges.Add(2, 2);  // before one and behind another
  ranges.Add(6, 2);
  EXPECT_THAT(ranges.Take(9), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  ranges.Add(5, 0);
  EXPECT_EQ(ranges.num_pages(), 0);
}

// The most neighbours that a set of pages has.
int32_t LongestStretch(const std::set<int32_t>& pages) {
  int32_t longest = 0, length = 0, previous = -2;
  for (const int32_t page : pages) {
    length = page == previous + 1 ? length + 1 : 1;
    longest = std::max(longest, length);
    previous = page;
  }
  return longest;
}

TEST(PageRangesTest, RandomOperationsAgreeWithASet) {
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{std::random_device()()}}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    constexpr int32_t kPages = 200;
    PageRanges ranges;
    ranges.Add(0, kPages);
    std::set<int32_t> free;
    for (int32_t page = 0; page < kPages; ++page) free.insert(page);
    std::vector<std::vector<int32_t>> taken;
    for (int step = 0; step < 5000; ++step) {
      if (random() % 2 == 0 && !taken.empty()) {
        std::swap(taken[random() % taken.size()], taken.back());
        for (const int32_t page : taken.back()) {
          ranges.Add(page, 1);
          free.insert(page);
        }
        taken.pop_back();
      } else {
        const auto count = static_cast<int32_t>(random() % (std::min<size_t>(free.size(), 40) + 1));
        const bool in_one = LongestStretch(free) >= count;
        std::vector<int32_t> pages = ranges.Take(count);
        ASSERT_EQ(static_cast<int32_t>(pages.size()), count);
        for (const int32_t page : pages) ASSERT_EQ(free.erase(page), 1u) << page;
        if (in_one && count > 0) {
          ASSERT_EQ(pages.back(), pages.front() + count - 1);
          ASSERT_TRUE(std::is_sorted(pages.begin(), pages.end()));
        }
        taken.push_back(std::move(pages));
      }
      ASSERT_EQ(ranges.num_pages(), static_cast<int32_t>(free.size()));
    }
  }
}

}  // namespace
}  // namespace kvblend::kv
