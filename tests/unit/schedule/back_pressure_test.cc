// What a full queue refuses, and when it says to come back; deadlines that cannot be met.
#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "base/retry_delay.h"
#include "engine/schedule/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/fake_clock.h"

namespace kvblend::schedule {
namespace {

using ::testing::HasSubstr;

class BackPressureTest : public ::testing::Test {
 protected:
  ~BackPressureTest() override {
    if (!release_.HasBeenNotified()) release_.Notify();
    scheduler_->Drain(absl::InfiniteFuture()).IgnoreError();  // or what waits would be abandoned
  }

  /// A scheduler whose engine thread is busy until Release.
  void Start(Scheduler::Options options) {
    scheduler_ = std::make_unique<Scheduler>(options, clock_);
    Job job = MakeJob(0, 0);
    absl::Notification begun;
    job.advance = [&] {
      begun.Notify();
      release_.WaitForNotification();
      return false;
    };
    ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok());
    begun.WaitForNotification();
  }
  Job MakeJob(int64_t tokens, double predicted_seconds, absl::Duration deadline = absl::InfiniteDuration()) {
    Job job;
    job.tokens = tokens;
    job.predicted_seconds = predicted_seconds;
    job.queue_seconds = predicted_seconds;
    job.deadline = clock_.Now() + deadline;
    job.advance = [] { return false; };
    job.abandon = [this](const absl::Status& status) {
      abandoned_ = status;
      over_.Notify();
    };
    return job;
  }
  absl::Status Submit(int64_t tokens, double predicted_seconds,
                      absl::Duration deadline = absl::InfiniteDuration()) {
    return scheduler_->Submit(MakeJob(tokens, predicted_seconds, deadline)).status();
  }

  FakeClock clock_;
  absl::Notification release_, over_;
  absl::Status abandoned_;
  std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(BackPressureTest, AFullQueueSaysWhenHalfOfItShouldBeDone) {
  Start({.max_queued = 2});
  ASSERT_TRUE(Submit(10, 3).ok());
  ASSERT_TRUE(Submit(10, 5).ok());
  EXPECT_EQ(scheduler_->predicted_wait(), absl::Seconds(8));
  const absl::Status full = Submit(10, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("2 requests wait; allowed: 2"));
  EXPECT_EQ(RetryDelayOf(full), absl::Seconds(4));
}

TEST_F(BackPressureTest, DelaysAreNeitherNothingNorForEver) {
  Start({.max_queued = 1});
  ASSERT_TRUE(Submit(1, 0).ok());
  EXPECT_EQ(RetryDelayOf(Submit(1, 0)), absl::Milliseconds(10));
  release_.Notify();
  ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok());
}

// Chunks to store, of which it is not sure that they cost anything; their jobs go on with one another.
TEST_F(BackPressureTest, APutCountsWithAllItsChunks) {
  Start({.max_queued = 1});
  Job put = MakeJob(10, 0, absl::Seconds(1));
  put.lane = Lane::kBulk;
  put.queue_seconds = 2;
  put.continued_seconds = 6;
  ASSERT_TRUE(scheduler_->Submit(put).ok());
  EXPECT_EQ(RetryDelayOf(Submit(1, 0)), absl::Seconds(4));
  Job next = put;
  next.continues = true;
  next.continued_seconds = 4;
  ASSERT_TRUE(scheduler_->Submit(next).ok());
  EXPECT_EQ(RetryDelayOf(Submit(1, 0)), absl::Seconds(7));
}

// Lanes have their turns beside each other: the longer of their queues is how long it takes.
TEST_F(BackPressureTest, LanesAreNotWaitedForOneAfterTheOther) {
  Start({.max_queued = 2});
  Job put = MakeJob(10, 5);
  put.lane = Lane::kBulk;
  ASSERT_TRUE(scheduler_->Submit(put).ok());
  ASSERT_TRUE(Submit(10, 3).ok());
  EXPECT_EQ(scheduler_->predicted_wait(), absl::Seconds(5));
}

TEST_F(BackPressureTest, LongQueuesAreNotWaitedFor) {
  Start({.max_queued = 1});
  ASSERT_TRUE(Submit(1, 1e6).ok());
  EXPECT_EQ(RetryDelayOf(Submit(1, 0)), absl::Minutes(1));
}

TEST_F(BackPressureTest, TokensAreBoundedButOneMayAlwaysWait) {
  Start({.max_queued = 10, .max_queued_tokens = 100});
  ASSERT_TRUE(Submit(500, 1).ok());
  EXPECT_EQ(scheduler_->waiting_tokens(), 500);
  const absl::Status full = Submit(1, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("requests of 500 tokens wait, and this one has 1; allowed: 100"));
  EXPECT_TRUE(RetryDelayOf(full).has_value());
  release_.Notify();
  ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok());
  EXPECT_EQ(scheduler_->waiting_tokens(), 0);
}

TEST_F(BackPressureTest, WhoHasNothingWaitingFindsAPlaceInAQueueThatOthersFill) {
  Start({.max_queued = 16, .max_queued_tokens = 160});
  const auto submit = [&](const std::string& key, int64_t tokens, Lane lane = Lane::kInteractive) {
    Job job = MakeJob(tokens, 1);
    job.fairness_key = key;
    job.lane = lane;
    return scheduler_->Submit(std::move(job)).status();
  };
  for (int i = 0; i < 16; ++i) ASSERT_TRUE(submit("many", 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(submit("many", 0)));
  EXPECT_TRUE(absl::IsResourceExhausted(submit("one", 21))) << "tokens";
  EXPECT_TRUE(submit("one", 10).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(submit("one", 0)));
  EXPECT_TRUE(absl::IsResourceExhausted(submit("one", 0, Lane::kBulk))) << "it has one waiting";
  EXPECT_TRUE(submit("another", 10, Lane::kBulk).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(submit("third", 0))) << "an eighth, and no more";
  release_.Notify();
  ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok());
}

TEST_F(BackPressureTest, WhatIsCancelledMakesRoom) {
  Start({.max_queued = 10, .max_queued_tokens = 100});
  const auto id = scheduler_->Submit(MakeJob(90, 7));
  ASSERT_TRUE(id.ok());
  EXPECT_FALSE(Submit(20, 1).ok());
  EXPECT_TRUE(scheduler_->Abandon(*id, absl::CancelledError("gone")));
  EXPECT_EQ(scheduler_->predicted_wait(), absl::ZeroDuration());
  EXPECT_TRUE(Submit(20, 1).ok());
  EXPECT_TRUE(Submit(80, 1).ok());
}

// The last one that waits is cancelled before it begins. Then nothing happens for an hour, which is not what
// the next one takes.
TEST_F(BackPressureTest, AnHourWithoutRequestsSlowsNobodyDown) {
  std::atomic<bool> ongoing = true, room = false;
  Start({.max_queued = 10, .ongoing = [&] { return ongoing.load(); }});
  const auto waiting = [&](double seconds) {
    Job job = MakeJob(1, seconds);
    job.has_room = [&] { return room.load(); };
    return scheduler_->Submit(std::move(job));
  };
  const auto gone = waiting(1);
  ASSERT_TRUE(gone.ok());
  release_.Notify();
  while (scheduler_->running() > 0) std::this_thread::yield();
  ASSERT_TRUE(scheduler_->Abandon(*gone, absl::CancelledError("gone")));
  clock_.Advance(absl::Hours(1));
  Job job = MakeJob(1, 1);
  absl::Notification ended;
  job.advance = [&] {
    clock_.Advance(absl::Seconds(1));
    ended.Notify();
    return false;
  };
  ASSERT_TRUE(scheduler_->Submit(std::move(job)).ok());
  ended.WaitForNotification();
  while (scheduler_->running() > 0) std::this_thread::yield();
  ASSERT_TRUE(waiting(10).ok());
  EXPECT_NEAR(absl::ToDoubleSeconds(scheduler_->predicted_wait()), 10, 0.1);
  room = true;
  ongoing = false;
  ASSERT_TRUE(scheduler_->Drain(absl::InfiniteFuture()).ok());
}

// Ten seconds of work with half of them sure: five before its deadline it is too late to begin.
TEST_F(BackPressureTest, AJobThatCannotMeetItsDeadlineAnyMoreEndsAtOnce) {
  Start({});
  ASSERT_TRUE(Submit(1, 10, absl::Seconds(20)).ok());
  clock_.Advance(absl::Seconds(14));
  EXPECT_FALSE(over_.HasBeenNotified());
  clock_.Advance(absl::Seconds(1));
  over_.WaitForNotification();
  EXPECT_TRUE(absl::IsDeadlineExceeded(abandoned_));
  EXPECT_EQ(abandoned_.message(),
            "after 15s in the queue the deadline is in 5s, but the prompt alone should take 10s");
  EXPECT_EQ(scheduler_->waiting(Lane::kInteractive), 0);
}

TEST_F(BackPressureTest, OneThatNeverCouldIsRefused) {
  Start({});
  const absl::Status late = Submit(1, 10, absl::Seconds(4));
  EXPECT_TRUE(absl::IsDeadlineExceeded(late));
  EXPECT_EQ(late.message(), "the deadline is in 4s, but the prompt alone should take 10s");
  EXPECT_TRUE(Submit(1, 10, absl::Seconds(6)).ok());
}

}  // namespace
}  // namespace kvblend::schedule
