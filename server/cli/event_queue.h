// Hands the events of one request to the thread that waits for them.
#pragma once

#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::server::cli {

/// Unbounded, first in, first out. Any number of producers, one consumer.
template <typename Event>
class EventQueue {
 public:
  void Push(Event event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }

  /// Waits for the next event.
  Event Pop() {
    absl::MutexLock lock(&mutex_, absl::Condition(this, &EventQueue::HasEvent));
    Event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  bool HasEvent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !events_.empty(); }

  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::server::cli
