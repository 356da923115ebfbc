// Threads for what calls do before there is an answer: reading the message, tokenizing, splitting, waiting for a slow tier. gRPC's
// own threads, of which there are few, deliver everybody's streams and must never wait.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

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

  /// Has one of the threads do it, in the order of asking. kResourceExhausted: too many wait, and it is never done. `bytes`:
  /// of the message that waits with it.
  absl::Status Run(size_t bytes, std::function<void()> task);

  /// Waits for everything that was asked for, and ends the threads. Again: nothing. Nothing may be asked for afterwards.
  void Stop();

 private:
  void Work();

  const Limits limits_;
  absl::Mutex mutex_;
  std::deque<std::pair<size_t, std::function<void()>>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

/// Those of a server. Apart from each other, so that what takes long holds up only its like.
class ServerThreads {
 public:
  enum class Kind {
    kStream,  // beginning one: its text is tokenized
    kQuick,   // answered from what is in memory, or nearly so
    kLong,    // splits a document, or asks tiers for many chunks
  };

  explicit ServerThreads(const CallThreads::Limits& of_each)
      : stream_(of_each), quick_(of_each), long_(of_each) {}

  CallThreads& Of(Kind kind) {
    return kind == Kind::kStream ? stream_ : kind == Kind::kQuick ? quick_ : long_;
  }
  /// As CallThreads::Stop of all.
  void Stop() {
    for (CallThreads* threads : {&stream_, &quick_, &long_}) threads->Stop();
  }

 private:
  CallThreads stream_, quick_, long_;
};

}  // namespace kvblend::server
