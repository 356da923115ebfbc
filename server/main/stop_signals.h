// SIGTERM, SIGINT and SIGHUP, as an event that a thread can wait for.
#pragma once

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"

namespace kvblend::server {

/// Make one at the very start of main, before any other thread: the signals are blocked in this thread and so
/// in all that it starts, and a thread of this object's receives them. The first one notifies arrived(); the
/// second ends the process at once with exit code 128 + its number. Thread-safe.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  const absl::Notification& arrived() const { return arrived_; }

  /// While set, the first signal ends the process at once with exit code 0: for work that cannot be
  /// interrupted, and that may be lost.
  void EndAtOnce(bool at_once) { end_at_once_ = at_once; }

 private:
  void Run();

  absl::Notification arrived_;
  std::atomic<bool> end_at_once_{false};
  std::thread thread_;
};

}  // namespace kvblend::server
