// Many threads submit, abandon, move the clock and drain: every accepted job is run or abandoned exactly
// once, every refused one never.
#include <algorithm>
#include <atomic>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/schedule/scheduler.h"
#include "gtest/gtest.h"
#include "tests/unit/schedule/fake_clock.h"

namespace kvblend::schedule {
namespace {

struct Record {
  std::atomic<int> ran = 0;
  std::atomic<int> abandoned = 0;
  bool accepted = false;  // written by the submitting thread, read after all threads ended
};

class Ledger {
 public:
  Record& Add() {
    absl::MutexLock lock(&mutex_);
    return records_.emplace_back();
  }
  void NoteId(JobId id) {
    absl::MutexLock lock(&mutex_);
    ids_.push_back(id);
  }
  JobId RandomId(uint64_t random) {
    absl::MutexLock lock(&mutex_);
    return ids_.empty() ? 0 : ids_[random % ids_.size()];
  }
  /// REQUIRES: no other thread left.
  const std::deque<Record>& records() ABSL_NO_THREAD_SAFETY_ANALYSIS { return records_; }

 private:
  absl::Mutex mutex_;
  std::deque<Record> records_ ABSL_GUARDED_BY(mutex_);
  std::vector<JobId> ids_ ABSL_GUARDED_BY(mutex_);
};

/// Touched by the engine thread only, so that ThreadSanitizer sees a call from another.
struct LeftBehind {
  int steps = 0;
  bool Step() {
    steps = std::max(0, steps - 1);
    return steps > 0;
  }
};

absl::Status SubmitRecorded(Scheduler& scheduler, Ledger& ledger, Lane lane, const std::string& key,
                            absl::Time deadline, std::atomic<int>& inside, LeftBehind* left_behind,
                            bool with_job_behind) {
  Record& record = ledger.Add();
  Job job;
  if (left_behind != nullptr) job.has_room = [left_behind] { return left_behind->steps < 3; };
  job.fairness_key = key;
  job.lane = lane;
  job.deadline = deadline;
  auto turns_left = std::make_shared<int>(static_cast<int>(key[0]) % 3);
  job.seconds_left = [turns_left] { return *turns_left; };
  job.advance = [&scheduler, &ledger, &record, &inside, left_behind, with_job_behind, turns_left] {
    EXPECT_EQ(inside.fetch_add(1), 0);  // one at a time
    if (--*turns_left > 0) {
      inside.fetch_sub(1);
      return true;
    }
    record.ran.fetch_add(1);
    if (left_behind != nullptr) {
      left_behind->steps += 3;
    }
    if (with_job_behind) {
      (void)SubmitRecorded(scheduler, ledger, Lane::kBackground, "behind", absl::InfiniteFuture(), inside,
                           nullptr, false);
    }
    inside.fetch_sub(1);
    return false;
  };
  job.abandon = [&record](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    record.abandoned.fetch_add(1);
  };
  absl::StatusOr<JobId> id = scheduler.Submit(std::move(job));
  record.accepted = id.ok();
  if (id.ok()) ledger.NoteId(*id);
  return id.status();
}

TEST(SchedulerStressTest, EveryAcceptedJobEndsExactlyOnce) {
  int total_ran = 0, total_abandoned = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    FakeClock clock;
    Ledger ledger;
    LeftBehind left_behind;
    std::atomic<int> inside = 0;
    std::atomic<int> submitting = 4;
    {
      Scheduler scheduler({.max_queued = 8,
                           .max_queued_background = 4,
                           .max_in_progress = {3, 2, 1},
                           .ongoing = [&left_behind] { return left_behind.Step(); }},
                          clock);
      std::vector<std::thread> threads;
      for (uint64_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
          std::mt19937_64 random(seed * 100 + t);
          int accepted = 0;
          while (accepted < 150) {
            const auto lane = static_cast<Lane>(random() % 3);
            const absl::Time deadline =
                random() % 2 == 0 ? absl::InfiniteFuture()
                                  : clock.Now() + absl::Milliseconds(static_cast<int64_t>(random() % 5));
            const std::string key(1, static_cast<char>('a' + random() % 3));
            const absl::Status status =
                SubmitRecorded(scheduler, ledger, lane, key, deadline, inside,
                               random() % 2 == 0 ? &left_behind : nullptr, random() % 4 == 0);
            if (absl::IsUnavailable(status)) break;
            if (absl::IsResourceExhausted(status)) std::this_thread::yield();
            accepted += status.ok() ? 1 : 0;
          }
          submitting.fetch_sub(1);
        });
      }
      threads.emplace_back([&] {
        std::mt19937_64 random(seed);
        while (submitting > 0) {
          scheduler.Abandon(ledger.RandomId(random()), absl::CancelledError("by the test"));
          std::this_thread::yield();
        }
      });
      threads.emplace_back([&] {
        while (submitting > 0) {
          clock.Advance(absl::Milliseconds(1));
          std::this_thread::yield();
        }
      });
      // With odd seeds the drain comes in the middle of it all; with some, its deadline has passed already.
      if (seed % 2 == 1) {
        threads.emplace_back([&] {
          (void)scheduler.Drain(seed % 3 == 0 ? absl::InfinitePast() : clock.Now() + absl::Milliseconds(100));
        });
      }
      for (size_t i = 0; i < 6; ++i) threads[i].join();
      clock.Advance(absl::Seconds(1));  // lets a waiting drain end
      for (size_t i = 6; i < threads.size(); ++i) threads[i].join();
      if (seed % 2 == 0) {
        EXPECT_TRUE(scheduler.Drain(absl::InfiniteFuture()).ok());
      }
    }
    EXPECT_EQ(left_behind.steps, 0);
    for (const Record& record : ledger.records()) {
      ASSERT_EQ(record.ran + record.abandoned, record.accepted ? 1 : 0);
      total_ran += record.ran;
      total_abandoned += record.abandoned;
    }
  }
  EXPECT_GT(total_ran, 0);
  EXPECT_GT(total_abandoned, 0);
}

}  // namespace
}  // namespace kvblend::schedule
