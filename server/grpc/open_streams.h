// What the calls of a server keep for clients that have not read it, all together, and for how long.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace kvblend::server {

class EventStream;

/// Thread-safe.
class OpenStreams {
 public:
  struct Limits {
    size_t max_unsent_bytes =
        512 << 20;  // of all calls; half of it may wait behind a message of a single one
    absl::Duration write_timeout = absl::Seconds(30);  // for a message to be taken
  };

  explicit OpenStreams(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }
  size_t max_unsent_bytes_of_one() const { return limits_.max_unsent_bytes / 2; }
  size_t unsent_bytes() const { return unsent_bytes_; }

  /// Waits until no call is left; false: some were at `deadline`.
  bool AwaitNone(absl::Time deadline) const;

  /// Ends the calls whose clients have not taken a message within the time allowed.
  void EndStuck(absl::Time now);

  // --- for the streams

  void Add(const EventStream* stream, std::weak_ptr<EventStream> owner);
  void Remove(const EventStream* stream);
  /// Counts bytes that came; true when all together are too many.
  [[nodiscard]] bool Came(size_t bytes) { return (unsent_bytes_ += bytes) > limits_.max_unsent_bytes; }
  void Went(size_t bytes) { unsent_bytes_ -= bytes; }
  /// Ends the call that has most of them. Not to be called with a stream's lock.
  void EndLargest();

 private:
  std::vector<std::shared_ptr<EventStream>> All() const;

  const Limits limits_;
  std::atomic<size_t> unsent_bytes_{0};
  mutable absl::Mutex mutex_;
  std::map<const EventStream*, std::weak_ptr<EventStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

/// Looks for stuck ones, in a thread of its own, until it is destroyed.
class StuckStreamsWatch {
 public:
  explicit StuckStreamsWatch(std::shared_ptr<OpenStreams> streams);
  ~StuckStreamsWatch();

 private:
  const std::shared_ptr<OpenStreams> streams_;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace kvblend::server
