// Several jobs in progress: whose turn it is.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/gated_scheduler.h"

namespace kvblend::schedule {
namespace {

class InProgressTest : public GatedSchedulerTest {
 protected:
  /// A job of so many turns of 10 ms, which says what is left when `tells`.
  void Submit(char name, int turns, bool tells = true, std::string key = "k", Lane lane = Lane::kInteractive,
              std::function<void()> at_first = nullptr) {
    auto left = std::make_shared<int>(turns);
    Job job;
    job.fairness_key = std::move(key);
    job.lane = lane;
    job.advance = [this, name, left, at_first, turns] {
      if (*left == turns && at_first != nullptr) at_first();
      order_ += name;
      clock_.Advance(absl::Milliseconds(10));
      return --*left > 0;
    };
    job.continues = true;  // not refused while draining
    if (tells) job.seconds_left = [left] { return *left * 0.01; };
    job.abandon = [](const absl::Status& status) { ADD_FAILURE() << status; };
    ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok());
  }
};

TEST_F(InProgressTest, TheOneWithLeastLeftGoesOnAndEqualsInTheirOrder) {
  Start({.max_in_progress = {3, 1, 1}});
  Submit('a', 5);
  Submit('b', 2);
  Submit('c', 2);
  Submit('d', 1);
  Run();
  // a, b and c start; b and c have one turn left, b came first; d gets the place that b leaves.
  EXPECT_EQ(order_, "abcbdcaaaa");
}

TEST_F(InProgressTest, WhatNobodyWaitsForIsDoneWhileThereIsNothingElse) {
  int left = 3;
  absl::Notification done;
  Start({.max_in_progress = {2, 1, 1},
         .ongoing =
             [&, steps = 2]() mutable {
               order_ += '.';
               return --steps > 0;
             },
         .idle =
             [&] {
               order_ += '_';
               // Who comes meanwhile comes first.
               if (left == 3) Submit('b', 2);
               if (--left > 0) return true;
               done.Notify();
               return false;
             }});
  Submit('a', 2);
  gate_.Notify();
  done.WaitForNotification();
  ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(order_, ".a.a._bb.__");
}

TEST_F(InProgressTest, AShortJobOvertakesALongOneThatIsInProgress) {
  Start({.max_in_progress = {2, 1, 1}});
  Submit('a', 6, true, "k", Lane::kInteractive, [&] { Submit('b', 2); });
  Run();
  EXPECT_EQ(order_, "abbaaaaa");
}

// Shorter ones keep coming, each when the one before it ends, and yet the long one ends in time.
TEST_F(InProgressTest, NoJobIsOvertakenForEver) {
  Start({.max_in_progress = {2, 1, 1}});
  int more = 60;
  std::function<void()> next = [&] {
    if (more-- > 0) Submit('s', 2, true, "k", Lane::kInteractive, next);
  };
  Submit('L', 20, true, "k", Lane::kInteractive, next);
  Run();
  const size_t end = order_.rfind('L');
  // After as long again as it takes, what is new has no less left to do than it has.
  EXPECT_LE(end, 2 * 20 + 6u) << order_;
}

TEST_F(InProgressTest, KeysShareTheTimeWhateverTheLengthOfTheirJobs) {
  Start({.max_in_progress = {4, 1, 1}});
  for (int i = 0; i < 3; ++i) Submit('a', 10, true, "a");
  for (int i = 0; i < 15; ++i) Submit('b', 2, true, "b");
  Run();
  for (size_t turns = 4; turns <= order_.size(); ++turns) {
    const auto of_a = std::count(order_.begin(), order_.begin() + static_cast<int64_t>(turns), 'a');
    EXPECT_LE(std::abs(2 * of_a - static_cast<int64_t>(turns)), 4) << order_.substr(0, turns);
  }
}

TEST_F(InProgressTest, WhatIsDecodedForAKeyCountsAsItsJobsDo) {
  Start({.max_in_progress = {2, 1, 1}});
  scheduler_->Charge(Lane::kInteractive, Priority::kNormal, "a", 0.05);
  Submit('a', 10, false, "a");
  Submit('b', 10, false, "b");
  Run();
  EXPECT_EQ(order_.substr(0, 8), "babbbbba") << order_;
}

/// A job that waits for something for so many turns in which there is nothing else to do, and then has two to
/// do.
void SubmitWaiting(Scheduler& scheduler, FakeClock& clock, std::string& order, Lane lane, int waits) {
  struct State {
    int waits, left = 2;
  };
  auto state = std::make_shared<State>(State{waits});
  Job job;
  job.fairness_key = "waits";
  job.lane = lane;
  job.continues = true;
  job.seconds_left = [state] {
    return state->waits > 0 ? std::numeric_limits<double>::infinity() : 0.01 * state->left;
  };
  job.advance = [&clock, &order, state] {
    clock.Advance(absl::Milliseconds(state->waits > 0 ? 1 : 10));
    order += state->waits > 0 ? '?' : 'w';
    return state->waits > 0 ? state->waits-- > 0 : --state->left > 0;
  };
  job.abandon = [](const absl::Status& status) { ADD_FAILURE() << status; };
  ASSERT_TRUE(scheduler.Submit(std::move(job)).ok());
}

TEST_F(InProgressTest, WhoWaitsForWhatIsOnItsWayTakesNobodysTurn) {
  Start({.max_in_progress = {2, 1, 1}});
  // Its key has had least, and its lane is owed most.
  SubmitWaiting(*scheduler_, clock_, order_, Lane::kInteractive, 3);
  Submit('a', 3, false, "a");
  Submit('b', 3, false, "b", Lane::kBulk);
  Run();
  // It begins, and then has its turns when all others are done.
  EXPECT_EQ(order_.substr(order_.size() - 4), "??ww") << order_;
  EXPECT_EQ(std::count(order_.begin(), order_.end(), '?'), 3) << order_;
}

TEST_F(InProgressTest, WhatIsOngoingDoesNotWaitForWhoWaits) {
  int left = 0;
  Start({.max_in_progress = {2, 1, 1},
         .ongoing =
             [&] {
               if (left == 0) return false;
               order_ += '.';
               return --left > 0;
             },
         .slice = [](Lane) { return absl::Milliseconds(30); }});
  SubmitWaiting(*scheduler_, clock_, order_, Lane::kInteractive, 3);
  Submit('a', 1, false, "a", Lane::kInteractive, [&] { left = 5; });
  Run();
  EXPECT_EQ(order_, "?a.....??ww");
}

// However little its key is owed.
TEST_F(InProgressTest, WhoIsCancelledHasTheNextTurn) {
  Start({.max_in_progress = {2, 1, 1}});
  bool cancelled = false;
  Job job;
  job.fairness_key = "c";
  job.continues = true;
  job.seconds_left = [&] { return cancelled ? -std::numeric_limits<double>::infinity() : 1.0; };
  job.advance = [&] {
    order_ += cancelled ? 'x' : 'c';
    clock_.Advance(absl::Seconds(1));
    return !cancelled;
  };
  job.abandon = [](const absl::Status& status) { ADD_FAILURE() << status; };
  ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok());
  Submit('b', 3, false, "b", Lane::kInteractive, [&] { cancelled = true; });
  Run();
  EXPECT_EQ(order_, "cbxbb");
}

TEST_F(InProgressTest, LanesShareTheTimeByTheirWeights) {
  Start({.max_in_progress = {1, 1, 1}});
  Submit('B', 100, false, "k", Lane::kBackground);
  Submit('b', 100, false, "k", Lane::kBulk);
  Submit('I', 400, false);
  Run();
  const std::string first = order_.substr(0, 210);
  EXPECT_NEAR(static_cast<double>(std::count(first.begin(), first.end(), 'I')), 160, 10) << first;
  EXPECT_NEAR(static_cast<double>(std::count(first.begin(), first.end(), 'b')), 40, 6) << first;
  EXPECT_NEAR(static_cast<double>(std::count(first.begin(), first.end(), 'B')), 10, 6) << first;
  EXPECT_EQ(first.substr(0, 10), "IIIIIIIIII");
}

/// Jobs that hold a part of a room while they are in progress.
class RoomTest : public InProgressTest {
 protected:
  static constexpr int kAll = 10;
  static constexpr absl::Duration kTurn = absl::Milliseconds(20);

  void SubmitIn(int32_t room, char name, Lane lane, int size, int turns,
                std::function<void(int)> on_turn = nullptr) {
    Job job;
    job.fairness_key = std::string(1, name);
    job.lane = lane;
    job.room = room;
    job.continues = true;
    job.has_room = [this, room, size] { return taken_[room] == 0 || taken_[room] + size <= kAll; };
    job.advance = [this, room, name, size, turns, on_turn, turn = 0]() mutable {
      if (turn == 0) {
        taken_[room] += size;
        order_ += name;
      }
      if (on_turn != nullptr) on_turn(turn);
      clock_.Advance(kTurn);
      if (++turn < turns) return true;
      taken_[room] -= size;
      return false;
    };
    job.abandon = [](const absl::Status& status) { ADD_FAILURE() << status; };
    ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok());
  }

  int taken_[2] = {};
};

// Two other lanes that always have something to start hold a part of the room in turns, so that it is hardly
// ever all there.
TEST_F(RoomTest, ALargeJobIsNotKeptOutByOtherLanesForEver) {
  Start({.max_in_progress = {2, 1, 1}});
  absl::Time submitted, begun;
  for (int i = 0; i < 200; ++i) {
    SubmitIn(0, 'b', Lane::kBulk, 2, 49);
    SubmitIn(0, 'B', Lane::kBackground, 2, 31, [&, i](int turn) {
      if (i > 0 || turn > 0) return;
      submitted = clock_.Now();
      SubmitIn(0, 'L', Lane::kInteractive, kAll, 1, [&](int) { begun = clock_.Now(); });
    });
  }
  Run();
  // What is in progress when its patience ends goes on to its end.
  EXPECT_LE(begun - submitted, Scheduler::kRoomPatience + kTurn * (49 + 31));
}

// Of two small ones that are in progress at any time, one always holds a part.
TEST_F(RoomTest, NorByAMoreUrgentLaneThatHasHadMore) {
  Start({.max_in_progress = {2, 1, 1}});
  constexpr int kTurns = 10;
  absl::Time submitted, begun;
  for (int i = 0; i < 100; ++i) {
    SubmitIn(0, 's', Lane::kInteractive, 4, kTurns, [&, i](int turn) {
      if (i > 0 || turn > 0) return;
      submitted = clock_.Now();
      SubmitIn(0, 'L', Lane::kBulk, 8, 1, [&](int) { begun = clock_.Now(); });
    });
  }
  Run();
  EXPECT_LE(begun - submitted, Scheduler::kRoomPatience + kTurn * (2 * kTurns));
}

TEST_F(RoomTest, WhoAsksForAnotherRoomIsNotHeldUp) {
  Start({.max_in_progress = {2, 1, 1}});
  const auto patience = static_cast<int>(Scheduler::kRoomPatience / kTurn);
  SubmitIn(0, 'B', Lane::kBackground, 1, 2 * patience, [this, patience](int turn) {
    if (turn == 0) SubmitIn(0, 'L', Lane::kInteractive, kAll, 1);
    if (turn != patience + 1) return;
    SubmitIn(0, 'b', Lane::kBulk, 1, 1);
    SubmitIn(1, 'o', Lane::kBulk, 1, 1);
  });
  Run();
  EXPECT_EQ(order_, "BoLb");
}

TEST_F(InProgressTest, WhatIsOngoingComesAfterEverySlice) {
  int left = 0;
  Start({.max_in_progress = {1, 1, 1},
         .ongoing =
             [&] {
               if (left == 0) return false;
               order_ += '.';
               return --left > 0;
             },
         .slice = [](Lane lane) { return absl::Milliseconds(lane == Lane::kInteractive ? 30 : 0); }});
  Submit('a', 1, false, "k", Lane::kInteractive, [&] { left = 8; });
  Submit('b', 7, false);
  Submit('c', 3, false, "k", Lane::kBulk);
  Run();
  EXPECT_EQ(order_, "abb.bbb.bb.c.c.c...");
}

}  // namespace
}  // namespace kvblend::schedule
