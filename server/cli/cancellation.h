// Stopping long calls from outside: Ctrl-C asks, running calls obey.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::server::cli {

/// A request to stop that running calls listen to. Thread-safe. Once requested it stays requested.
class Cancellation {
 public:
  /// While alive, its callback runs once when cancellation is requested. Destruction waits for a callback
  /// that is running. Must not outlive the Cancellation.
  class Listener {
   public:
    Listener(Cancellation& cancellation, std::function<void()> callback);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

   private:
    Cancellation& cancellation_;
    int64_t id_;
  };

  /// Runs the callbacks on the calling thread. They must not create or destroy listeners.
  void Request();
  bool requested() const;

 private:
  mutable absl::Mutex mutex_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mutex_);
};

/// While alive, the first SIGINT or SIGTERM requests cancellation and the second ends the process, as if it
/// had no handler. One at a time per process.
class CancelOnSignal {
 public:
  explicit CancelOnSignal(Cancellation& cancellation);
  ~CancelOnSignal();
  CancelOnSignal(const CancelOnSignal&) = delete;
  CancelOnSignal& operator=(const CancelOnSignal&) = delete;

 private:
  int read_end_ = -1;
  std::thread watcher_;
};

}  // namespace kvblend::server::cli
