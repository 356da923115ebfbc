#include "engine/serve/sequences/page_turns.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend {
namespace {

using schedule::Priority::kHigh, schedule::Priority::kLow, schedule::Priority::kNormal;
using Indices = std::vector<size_t>;

Party PartyOf(std::string key, schedule::Priority priority = kNormal) { return {priority, std::move(key)}; }

TEST(PageTurnsTest, TheLastOfThePartyWithMostPagesGivesThemUp) {
  EXPECT_EQ(NextToGivePagesUp({{{PartyOf("a"), 5}}}), 0U);
  EXPECT_EQ(NextToGivePagesUp({{{PartyOf("a"), 5}, {PartyOf("a"), 9}, {PartyOf("a"), 1}}}), 2U);
  EXPECT_EQ(NextToGivePagesUp({{{PartyOf("a"), 5}, {PartyOf("b"), 3}, {PartyOf("a"), 1}, {PartyOf("b"), 2}}}),
            2U);
  // Those who have only one answer keep it, however long it is, as long as others have several.
  EXPECT_EQ(
      NextToGivePagesUp({{{PartyOf("one"), 90}, {PartyOf("a"), 2}, {PartyOf("a"), 2}, {PartyOf("two"), 50}}}),
      2U);
  EXPECT_EQ(NextToGivePagesUp({{{PartyOf("a"), 5}, {PartyOf("b"), 9}, {PartyOf("c"), 1}}}), 2U);
}

TEST(PageTurnsTest, TheLowestPriorityGivesThemUpFirst) {
  EXPECT_EQ(NextToGivePagesUp({{{PartyOf("a", kHigh), 50}, {PartyOf("a", kHigh), 50}, {PartyOf("a"), 1}}}),
            2U);
  EXPECT_EQ(NextToGivePagesUp(
                {{{PartyOf("a"), 5}, {PartyOf("a"), 5}, {PartyOf("b", kLow), 1}, {PartyOf("c", kLow), 1}}}),
            3U);
}

TEST(PageTurnsTest, AnswersGiveWayToANewcomerWhileTheirPartyKeepsAsMuch) {
  const std::vector<PageHolder> holders = {
      {PartyOf("a"), 10}, {PartyOf("a"), 8}, {PartyOf("b"), 9}, {PartyOf("b"), 3}, {PartyOf("c"), 30}};
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), /*claimed=*/6, /*missing=*/6), (Indices{1}));
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), 9, 9), (Indices{1, 3}));
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), 9, 12),
            Indices());  // "a" and "b" have one answer each after that, and "c" has no other
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), 11, 1), Indices());  // nobody would keep as much
  EXPECT_EQ(GivingWay(holders, PartyOf("a"), 1, 1), (Indices{3}));
}

TEST(PageTurnsTest, TheLeastUrgentGiveWayFirstAndTheMoreUrgentNever) {
  const std::vector<PageHolder> holders = {{PartyOf("a", kHigh), 9}, {PartyOf("a", kHigh), 9},
                                           {PartyOf("a"), 9},        {PartyOf("a"), 9},
                                           {PartyOf("a", kLow), 4},  {PartyOf("a", kLow), 4}};
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), 4, 4), (Indices{5}));
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), 4, 8), (Indices{5, 3}));
  EXPECT_EQ(GivingWay(holders, PartyOf("new"), 4, 14), Indices());
  EXPECT_EQ(GivingWay(holders, PartyOf("new", kHigh), 4, 14), (Indices{5, 3, 1}));
  EXPECT_EQ(GivingWay(holders, PartyOf("new", kLow), 4, 5), Indices());
}

}  // namespace
}  // namespace kvblend
