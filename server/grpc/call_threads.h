// Threads for what calls do before there is an answer: reading the message, tokenizing, splitting, waiting
// for a slow tier. gRPC's own threads, of which there are few, deliver everybody's streams and must never
// wait.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/turn_queue.h"

namespace kvblend::server {

/// Thread-safe.
class CallThreads {
 public:
  struct Limits {
    int num_threads = 4;
    size_t max_waiting = 256;              // calls that no thread has time for
    size_t max_waiting_bytes = 256 << 20;  // of their messages
  };

  explicit CallThreads(const Limits& limits);
  ~CallThreads() { Stop(); }

  /// Queues `task`, which one of the threads runs: in the order of those with the same `turn`, which take
  /// turns with others. kResourceExhausted: too many wait, and it is not run. `bytes`: the size of the
  /// message that waits with it.
  absl::Status Run(const std::string& turn, size_t bytes, std::function<void()> task);

  /// Waits for all queued tasks and ends the threads. Idempotent. Run may not be called afterwards.
  void Stop();

 private:
  void Work();

  const Limits limits_;
  absl::Mutex mutex_;
  TurnQueue<std::pair<size_t, std::function<void()>>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

/// The threads of a server: a pool for each kind of call, so that long calls hold up only each other.
class ServerThreads {
 public:
  enum class Kind {
    kStream,  // begins a stream: its text is tokenized
    kQuick,   // answered from memory, or nearly so
    kLong,    // splits a document
    kTiers,   // asks tiers for many chunks, and waits for them
  };

  explicit ServerThreads(const CallThreads::Limits& of_each)
      : stream_(of_each), quick_(of_each), long_(of_each), tiers_(of_each) {}

  CallThreads& Of(Kind kind) {
    switch (kind) {
      case Kind::kStream:
        return stream_;
      case Kind::kQuick:
        return quick_;
      case Kind::kLong:
        return long_;
      case Kind::kTiers:
        break;
    }
    return tiers_;
  }
  /// Calls Stop of all pools.
  void Stop() {
    for (CallThreads* threads : {&stream_, &quick_, &long_, &tiers_}) threads->Stop();
  }

 private:
  CallThreads stream_, quick_, long_, tiers_;
};

}  // namespace kvblend::server
