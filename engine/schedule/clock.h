// Time as the scheduler sees it: a seam, so that tests move time by hand instead of sleeping.
#pragma once

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace kvblend::schedule {

/// Thread safety: every method may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  /// Waits until `condition` is signalled or this clock reaches `deadline`; may return early for no reason.
  /// REQUIRES: `mutex` is held; it is held again on return.
  virtual void Wait(absl::CondVar& condition, absl::Mutex& mutex, absl::Time deadline) = 0;

  /// That of base/steady_time.h; never destroyed.
  static Clock& System();
};

}  // namespace kvblend::schedule
