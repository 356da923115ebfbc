#include "engine/schedule/scheduler.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/retry_delay.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/fake_clock.h"

namespace kvblend::schedule {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What became of one job.
struct Outcome {
  absl::Notification over;
  bool ran = false;
  absl::Status abandoned;
};

class SchedulerTest : public ::testing::Test {
 protected:
  Job MakeJob(std::shared_ptr<Outcome> outcome, Lane lane = Lane::kInteractive, std::string key = "k",
              absl::Time deadline = absl::InfiniteFuture()) {
    Job job;
    job.fairness_key = std::move(key);
    job.lane = lane;
    job.deadline = deadline;
    job.advance = [outcome] {
      outcome->ran = true;
      outcome->over.Notify();
      return false;
    };
    job.abandon = [outcome](absl::Status status) {
      outcome->abandoned = std::move(status);
      outcome->over.Notify();
    };
    return job;
  }

  /// A job that does `run` and is never abandoned.
  static Job Doing(std::function<void()> run, Lane lane = Lane::kInteractive, std::string key = "k") {
    Job job;
    job.fairness_key = std::move(key);
    job.lane = lane;
    job.advance = [run = std::move(run)] {
      run();
      return false;
    };
    job.abandon = [](absl::Status status) { ADD_FAILURE() << status; };
    return job;
  }
  void Submit(Job job) { ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok()); }
  void Finish() { ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok()); }

  /// Keeps the engine thread busy until `gate_` opens, and waits until it is.
  void CloseGate() {
    absl::Notification busy;
    const auto wait = [&] {
      busy.Notify();
      gate_.WaitForNotification();
    };
    Submit(Doing(wait, Lane::kInteractive, "gate"));
    busy.WaitForNotification();
  }

  FakeClock clock_;
  absl::Notification gate_;
  std::unique_ptr<Scheduler> scheduler_ =
      std::make_unique<Scheduler>(Scheduler::Options{.max_queued = 3, .max_queued_background = 2}, clock_);
};

TEST_F(SchedulerTest, RunsJobsOnOneThreadOfItsOwn) {
  std::vector<std::thread::id> threads;
  for (int i = 0; i < 3; ++i) {
    absl::Notification over;
    Submit(Doing([&] {
      threads.push_back(std::this_thread::get_id());
      over.Notify();
    }));
    over.WaitForNotification();
  }
  EXPECT_EQ(threads, std::vector<std::thread::id>(3, threads[0]));
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST_F(SchedulerTest, CountsWaitingAndRunning) {
  CloseGate();
  EXPECT_EQ(scheduler_->running(), 1);
  for (Lane lane : {Lane::kInteractive, Lane::kBulk, Lane::kBulk, Lane::kBackground}) {
    Submit(MakeJob(std::make_shared<Outcome>(), lane));
  }
  EXPECT_EQ(scheduler_->waiting(Lane::kInteractive), 1);
  EXPECT_EQ(scheduler_->waiting(Lane::kBulk), 2);
  EXPECT_EQ(scheduler_->waiting(Lane::kBackground), 1);
  const auto unfinished = [&] {
    return scheduler_->unfinished(Lane::kInteractive) + scheduler_->unfinished(Lane::kBulk) +
           scheduler_->unfinished(Lane::kBackground);
  };
  EXPECT_EQ(unfinished(), 5);
  gate_.Notify();
  Finish();
  EXPECT_EQ(scheduler_->running(), 0);
  EXPECT_EQ(unfinished(), 0);
  EXPECT_EQ(scheduler_->waiting(Lane::kBulk), 0);
}

TEST_F(SchedulerTest, RunsInTheQueuesOrder) {
  CloseGate();
  std::vector<std::string> order;
  const auto submit = [&](std::string name, std::string key, Lane lane) {
    Submit(Doing([&order, name] { order.push_back(name); }, lane, key));
  };
  submit("background", "a", Lane::kBackground);
  submit("a1", "a", Lane::kInteractive);
  submit("a2", "a", Lane::kInteractive);
  submit("b1", "b", Lane::kInteractive);
  gate_.Notify();
  Finish();
  EXPECT_THAT(order, ElementsAre("a1", "b1", "a2", "background"));
}

TEST_F(SchedulerTest, FullQueuesRefuseByCountAndLimitAndSeparately) {
  CloseGate();
  Submit(MakeJob(std::make_shared<Outcome>(), Lane::kInteractive));
  Submit(MakeJob(std::make_shared<Outcome>(), Lane::kBulk));
  const JobId last = scheduler_->Submit(MakeJob(std::make_shared<Outcome>(), Lane::kBulk)).value();
  auto refused = std::make_shared<Outcome>();
  for (Lane lane : {Lane::kInteractive, Lane::kBulk}) {
    EXPECT_EQ(scheduler_->Submit(MakeJob(refused, lane)).status(),
              WithRetryDelay(absl::ResourceExhaustedError("the queue is full: 3 requests wait; allowed: 3"),
                             absl::Milliseconds(10)));
  }
  Submit(MakeJob(std::make_shared<Outcome>(), Lane::kBackground));
  Submit(MakeJob(std::make_shared<Outcome>(), Lane::kBackground));
  EXPECT_EQ(
      scheduler_->Submit(MakeJob(refused, Lane::kBackground)).status(),
      WithRetryDelay(absl::ResourceExhaustedError("the queue is full: 2 background jobs wait; allowed: 2"),
                     absl::Milliseconds(10)));
  // A job's next step is not refused; and Abandon makes room.
  Job next_step = MakeJob(std::make_shared<Outcome>(), Lane::kBulk);
  next_step.continues = true;
  const JobId next_id = scheduler_->Submit(next_step).value();
  EXPECT_TRUE(scheduler_->Abandon(next_id, absl::CancelledError("")));
  EXPECT_FALSE(scheduler_->Submit(MakeJob(refused)).ok());
  EXPECT_TRUE(scheduler_->Abandon(last, absl::CancelledError("")));
  Submit(MakeJob(std::make_shared<Outcome>()));
  gate_.Notify();
  Finish();
  EXPECT_FALSE(refused->over.HasBeenNotified());  // neither function is called for a refused job
}

TEST_F(SchedulerTest, AbandonWorksOnQueuedJobsOnly) {
  absl::Notification running;
  const auto wait = [&] {
    running.Notify();
    gate_.WaitForNotification();
  };
  const JobId running_id = scheduler_->Submit(Doing(wait)).value();
  running.WaitForNotification();
  auto outcome = std::make_shared<Outcome>();
  const JobId queued_id = scheduler_->Submit(MakeJob(outcome)).value();
  EXPECT_FALSE(scheduler_->Abandon(running_id, absl::CancelledError("")));
  EXPECT_TRUE(scheduler_->Abandon(queued_id, absl::CancelledError("client left")));
  EXPECT_TRUE(outcome->over.HasBeenNotified());  // before Abandon returned
  EXPECT_EQ(outcome->abandoned, absl::CancelledError("client left"));
  EXPECT_FALSE(scheduler_->Abandon(queued_id, absl::CancelledError("")));
  EXPECT_FALSE(scheduler_->Abandon(12345, absl::CancelledError("")));
  gate_.Notify();
  Finish();
  EXPECT_FALSE(outcome->ran);
}

TEST_F(SchedulerTest, WaitingJobsEndAtTheirDeadlineWhileAnotherRuns) {
  CloseGate();
  const absl::Time start = clock_.Now();
  auto late = std::make_shared<Outcome>();
  auto early = std::make_shared<Outcome>();
  auto probe = std::make_shared<Outcome>();
  const auto submit = [&](std::shared_ptr<Outcome> outcome, absl::Duration after) {
    Submit(MakeJob(outcome, Lane::kInteractive, "k", start + after));
  };
  submit(late, absl::Seconds(10));
  submit(early, absl::Seconds(5));
  clock_.Advance(absl::Seconds(5));
  early->over.WaitForNotification();
  EXPECT_EQ(early->abandoned, absl::DeadlineExceededError("the deadline passed after 5s in the queue"));
  // When the probe has been abandoned at 9.5 s, the timer has looked at `late` too and left it alone.
  submit(probe, absl::Seconds(9.5));
  clock_.Advance(absl::Seconds(4.5));
  probe->over.WaitForNotification();
  EXPECT_FALSE(late->over.HasBeenNotified());
  EXPECT_EQ(scheduler_->waiting(Lane::kInteractive), 1);
  clock_.Advance(absl::Seconds(0.5));
  late->over.WaitForNotification();
  EXPECT_EQ(late->abandoned.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(scheduler_->running(), 1);  // all the while
  gate_.Notify();
}

TEST_F(SchedulerTest, DeadlineInThePastIsRefused) {
  auto outcome = std::make_shared<Outcome>();
  const absl::Status status =
      scheduler_->Submit(MakeJob(outcome, Lane::kBulk, "k", clock_.Now() - absl::Seconds(2))).status();
  EXPECT_EQ(status, absl::DeadlineExceededError("the deadline passed 2s before submission"));
  Finish();
  EXPECT_FALSE(outcome->over.HasBeenNotified());
}

TEST_F(SchedulerTest, CallbacksMayCallBack) {
  CloseGate();
  auto inner = std::make_shared<Outcome>();
  Job job;
  job.advance = [] {
    ADD_FAILURE();
    return false;
  };
  job.abandon = [&](absl::Status) {
    EXPECT_EQ(scheduler_->waiting(Lane::kInteractive), 0);  // the slot is free already
    const JobId id = scheduler_->Submit(MakeJob(inner)).value();
    EXPECT_TRUE(scheduler_->Abandon(id, absl::CancelledError("inner")));
  };
  const JobId id = scheduler_->Submit(job).value();
  EXPECT_TRUE(scheduler_->Abandon(id, absl::CancelledError("outer")));
  EXPECT_EQ(inner->abandoned, absl::CancelledError("inner"));
  gate_.Notify();
}

TEST_F(SchedulerTest, WhatAJobOwnsIsReleasedWithoutTheLock) {
  struct CallsBack {
    Scheduler* scheduler;
    int* released;
    ~CallsBack() {
      scheduler->waiting(Lane::kInteractive);  // would wait for ever for a lock that is held
      ++*released;
    }
  };
  int released = 0;
  absl::Notification gates[2];
  for (bool abandon : {false, true}) {
    absl::Notification& gate = gates[abandon ? 1 : 0];
    absl::Notification busy;
    Submit(Doing([&] {
      busy.Notify();
      gate.WaitForNotification();
    }));
    busy.WaitForNotification();
    JobId id = 0;
    {
      Job job;
      job.advance = [owned = std::shared_ptr<CallsBack>(new CallsBack{scheduler_.get(), &released})] {
        return false;
      };
      job.abandon = [](absl::Status) {};
      id = scheduler_->Submit(std::move(job)).value();
    }
    EXPECT_EQ(abandon && scheduler_->Abandon(id, absl::CancelledError("")), abandon);
    gate.Notify();
  }
  Finish();
  EXPECT_EQ(released, 2);
}

TEST_F(SchedulerTest, DrainFinishesWhatWasAcceptedAndWhatComesBehindIt) {
  CloseGate();
  auto queued = std::make_shared<Outcome>();
  auto refused = std::make_shared<Outcome>();
  auto behind = std::make_shared<Outcome>();
  auto next_step = std::make_shared<Outcome>();
  absl::Status refused_with;
  Submit(Doing([&] {
    refused_with = scheduler_->Submit(MakeJob(refused)).status();
    Submit(MakeJob(behind, Lane::kBackground));
    Job step = MakeJob(next_step, Lane::kBulk);
    step.continues = true;
    EXPECT_TRUE(scheduler_->Submit(step).ok());
  }));
  Submit(MakeJob(queued));
  std::thread drain([&] { EXPECT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok()); });
  // Draining has begun when a submission is refused for it.
  while (true) {
    auto probe = std::make_shared<Outcome>();
    absl::StatusOr<JobId> id = scheduler_->Submit(MakeJob(probe));
    if (!id.ok()) {
      EXPECT_EQ(id.status().code(), absl::StatusCode::kUnavailable);
      break;
    }
    EXPECT_TRUE(scheduler_->Abandon(*id, absl::CancelledError("")));
  }
  gate_.Notify();
  drain.join();
  EXPECT_EQ(refused_with.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(queued->ran);
  EXPECT_TRUE(behind->ran);
  EXPECT_TRUE(next_step->ran);
  // Now everything is refused.
  EXPECT_EQ(scheduler_->Submit(MakeJob(refused, Lane::kBackground)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(scheduler_->Drain(absl::InfinitePast()).ok());
}

TEST_F(SchedulerTest, DrainGivesUpAtItsDeadline) {
  CloseGate();
  auto queued = std::make_shared<Outcome>();
  auto background = std::make_shared<Outcome>();
  Submit(MakeJob(queued));
  Submit(MakeJob(background, Lane::kBackground));
  absl::Status drained;
  const absl::Time deadline = clock_.Now() + absl::Seconds(30);
  std::thread drain([&] { drained = scheduler_->Drain(deadline); });
  clock_.Advance(absl::Seconds(30));
  drain.join();
  EXPECT_EQ(drained.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(drained.message(), HasSubstr("2 jobs queued, given up now, and 1 running"));
  EXPECT_EQ(queued->abandoned.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(background->abandoned.code(), absl::StatusCode::kUnavailable);
  gate_.Notify();
  Finish();  // the running one has ended
}

TEST_F(SchedulerTest, DestructorAbandonsTheQueuedAndWaitsForTheRunning) {
  CloseGate();
  auto queued = std::make_shared<Outcome>();
  Submit(MakeJob(queued));
  std::thread destroy([&] { scheduler_.reset(); });
  queued->over.WaitForNotification();
  EXPECT_EQ(queued->abandoned.code(), absl::StatusCode::kUnavailable);
  gate_.Notify();
  destroy.join();
}

TEST(SchedulerSystemClockTest, DeadlinesWorkWithTheSystemsClock) {
  absl::Notification gate;
  Scheduler scheduler(Scheduler::Options{});
  Job blocker;
  blocker.advance = [&] {
    gate.WaitForNotification();
    return false;
  };
  blocker.abandon = [](absl::Status) {};
  ASSERT_TRUE(scheduler.Submit(blocker).ok());
  // The blocker is first in line, and its gate opens only once the deadline has done its work.
  absl::Notification over;
  absl::Status abandoned;
  Job job;
  job.advance = [] {
    ADD_FAILURE();
    return false;
  };
  job.abandon = [&](absl::Status status) {
    abandoned = std::move(status);
    over.Notify();
  };
  absl::Status submitted;
  do {  // refused when this thread sleeps through the deadline before it gets to submit
    job.deadline = Clock::System().Now() + absl::Milliseconds(20);
    submitted = scheduler.Submit(job).status();
  } while (absl::IsDeadlineExceeded(submitted));
  ASSERT_TRUE(submitted.ok()) << submitted;
  over.WaitForNotification();
  EXPECT_EQ(abandoned.code(), absl::StatusCode::kDeadlineExceeded);
  gate.Notify();
}

// --- what jobs leave behind ---

class OngoingTest : public SchedulerTest {
 protected:
  OngoingTest() {
    scheduler_.reset();
    scheduler_ = std::make_unique<Scheduler>(
        Scheduler::Options{.max_queued = 8, .ongoing = [this] { return Ongoing(); }}, clock_);
  }
  ~OngoingTest() override { scheduler_.reset(); }

  bool Ongoing() {
    absl::MutexLock lock(&mutex_);
    if (left_ == 0) return false;
    order_.push_back("step");
    return --left_ > 0;
  }
  Job Named(std::string name, Lane lane, int leaves = 0) {
    const auto run = [this, name, leaves] {
      absl::MutexLock lock(&mutex_);
      order_.push_back(name);
      left_ += leaves;
    };
    return Doing(run, lane, name);
  }

  absl::Mutex mutex_;
  std::vector<std::string> order_;
  int left_ = 0;
};

TEST_F(OngoingTest, RunsBetweenInteractiveJobsAndUntilNothingIsLeft) {
  CloseGate();
  Submit(Named("a", Lane::kInteractive, 4));
  Submit(Named("b", Lane::kInteractive));
  Submit(Named("c", Lane::kInteractive));
  gate_.Notify();
  Finish();
  EXPECT_THAT(order_, ElementsAre("a", "step", "b", "step", "c", "step", "step"));
  EXPECT_FALSE(scheduler_->has_ongoing());
}

TEST_F(OngoingTest, AJobWaitsUntilThereIsRoomForWhatItLeaves) {
  CloseGate();
  Job large = Named("large", Lane::kInteractive, 2);
  large.has_room = [this] {
    absl::MutexLock lock(&mutex_);
    return left_ <= 1;
  };
  Submit(Named("first", Lane::kInteractive, 4));
  Submit(large);
  Submit(Named("behind it", Lane::kInteractive));
  gate_.Notify();
  Finish();
  EXPECT_THAT(order_,
              ElementsAre("first", "step", "behind it", "step", "step", "large", "step", "step", "step"));
}

TEST_F(OngoingTest, OtherLanesGoOnWhileAJobHasNoRoom) {
  constexpr int kLeft = 30;
  CloseGate();
  Job waits = Named("waits", Lane::kInteractive);
  waits.has_room = [] { return false; };  // until nothing is ongoing
  Submit(Named("first", Lane::kInteractive, kLeft));
  Submit(waits);
  Submit(Named("bulk", Lane::kBulk));
  gate_.Notify();
  Finish();
  ASSERT_EQ(order_.size(), kLeft + 3);
  EXPECT_EQ(order_[2], "bulk");
  EXPECT_EQ(order_.back(), "waits");
}

TEST_F(SchedulerTest, AJobWithoutRoomCanBeAbandoned) {
  absl::Notification stepping, go_on;
  scheduler_.reset();
  const auto step = [&] {
    stepping.Notify();
    go_on.WaitForNotification();
    return false;
  };
  scheduler_ = std::make_unique<Scheduler>(Scheduler::Options{.ongoing = step}, clock_);
  CloseGate();
  auto outcome = std::make_shared<Outcome>();
  bool asked = false;  // by the engine thread, before it steps
  Job job = MakeJob(outcome);
  job.has_room = [&] {
    asked = true;
    return false;
  };
  const JobId id = scheduler_->Submit(job).value();
  gate_.Notify();
  stepping.WaitForNotification();
  EXPECT_TRUE(asked);
  EXPECT_TRUE(scheduler_->Abandon(id, absl::CancelledError("no longer wanted")));
  EXPECT_EQ(outcome->abandoned, absl::CancelledError("no longer wanted"));
  go_on.Notify();
  Finish();
  EXPECT_FALSE(outcome->ran);
}

}  // namespace
}  // namespace kvblend::schedule
