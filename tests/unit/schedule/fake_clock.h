// A clock that stands still until a test moves it.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/schedule/clock.h"

namespace kvblend::schedule {

/// Lock order: the waiter's mutex, then the clock's.
class FakeClock final : public Clock {
 public:
  absl::Time Now() override {
    absl::MutexLock lock(&mutex_);
    return now_;
  }

  void Wait(absl::CondVar& condition, absl::Mutex& mutex, absl::Time deadline) override {
    const std::pair<absl::CondVar*, absl::Mutex*> waiter = {&condition, &mutex};
    {
      absl::MutexLock lock(&mutex_);
      if (now_ >= deadline) return;
      waiters_.push_back(waiter);
    }
    condition.Wait(&mutex);
    absl::MutexLock lock(&mutex_);
    waiters_.erase(std::find(waiters_.begin(), waiters_.end(), waiter));
  }

  void Advance(absl::Duration duration) {
    std::vector<std::pair<absl::CondVar*, absl::Mutex*>> waiters;
    {
      absl::MutexLock lock(&mutex_);
      now_ += duration;
      waiters = waiters_;
    }
    // A waiter registers while it holds its mutex and lets go of that only inside the wait: with the mutex
    // held here, the signal can't come too early.
    for (const auto& [condition, mutex] : waiters) {
      absl::MutexLock lock(mutex);
      condition->SignalAll();
    }
  }

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::UnixEpoch() + absl::Hours(1);
  std::vector<std::pair<absl::CondVar*, absl::Mutex*>> waiters_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::schedule
