// Jobs of several priorities: whose turn it is.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>

#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/gated_scheduler.h"

namespace kvblend::schedule {
namespace {

class PriorityTest : public GatedSchedulerTest {
 protected:
  /// A job of so many turns of 10 ms.
  void Submit(char name, Priority priority, int turns, std::function<bool()> has_room = nullptr,
              std::function<void(int left)> at_turn = nullptr) {
    auto left = std::make_shared<int>(turns);
    Job job;
    job.fairness_key = "k";
    job.priority = priority;
    job.has_room = std::move(has_room);
    job.continues = true;  // not refused while draining
    job.advance = [this, name, left, at_turn] {
      order_ += name;
      clock_.Advance(absl::Milliseconds(10));
      --*left;
      if (at_turn != nullptr) at_turn(*left);
      return *left > 0;
    };
    job.abandon = [](const absl::Status& status) { ADD_FAILURE() << status; };
    ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok());
  }
};

// The place in progress that the low one has is not in the way.
TEST_F(PriorityTest, AnUrgentJobOvertakesOneInProgress) {
  Start({.max_in_progress = {1, 1, 1}});
  Submit('l', Priority::kLow, 6, nullptr, [&](int left) {
    if (left == 4) Submit('h', Priority::kHigh, 3);
  });
  Run();
  EXPECT_EQ(order_, "llhhhllll");
}

TEST_F(PriorityTest, OthersDoNotStartBesideOnesThatAreMoreUrgent) {
  Start({.max_in_progress = {2, 1, 1}});
  Submit('h', Priority::kHigh, 3);
  Submit('i', Priority::kHigh, 3);
  Submit('l', Priority::kLow, 1);
  Run();
  // h and i start, and l has to wait until one of them is over.
  EXPECT_EQ(order_, "hihhlii");
}

TEST_F(PriorityTest, WhatAllNeedIsSharedSixteenToFourToOne) {
  Start({.max_in_progress = {3, 1, 1}});
  Submit('l', Priority::kLow, 1000);
  Submit('n', Priority::kNormal, 1000);
  Submit('h', Priority::kHigh, 1000);
  Run();
  EXPECT_EQ(order_.front(), 'h');
  const std::string first = order_.substr(0, 840);
  EXPECT_NEAR(std::count(first.begin(), first.end(), 'h'), 640, 10);
  EXPECT_NEAR(std::count(first.begin(), first.end(), 'n'), 160, 10);
  EXPECT_NEAR(std::count(first.begin(), first.end(), 'l'), 40, 5);
}

// Those that come again and again would take every room that becomes free, were there no end to it.
TEST_F(PriorityTest, WhoIsOwedATurnAndHasNoRoomIsOvertakenForAWhileOnly) {
  Start({.max_in_progress = {3, 1, 1}});
  int had = 0;
  Submit('h', Priority::kHigh, 2000, nullptr, [&](int left) { had = 2000 - left; });
  Submit('l', Priority::kLow, 1, [&] { return had >= 1500; });
  for (int i = 0; i < 600; ++i) Submit('n', Priority::kNormal, 1);
  Run();
  const std::string before = order_.substr(0, order_.find('l'));
  EXPECT_EQ(std::count(before.begin(), before.end(), 'h'), 1500);
  // Until then the normal ones began at once, and a single turn is all that they have.
  const auto turns = Scheduler::kRoomPatience / absl::Milliseconds(10);
  EXPECT_NEAR(std::count(before.begin(), before.end(), 'n'), turns, 20);
}

}  // namespace
}  // namespace kvblend::schedule
