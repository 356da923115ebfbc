// For what may happen thousands of times a second, and should not fill the log.
#pragma once

#include "absl/time/time.h"
#include "base/steady_time.h"

namespace kvblend::server {

/// Of all events of one kind, those that get a line in the log. Not thread-safe.
class OnceAMinute {
 public:
  /// Whether this event gets one: the first does, and then one per minute.
  bool IsDue() {
    const absl::Time now = SteadyNow();
    if (now - last_ < absl::Minutes(1)) return false;
    last_ = now;
    return true;
  }

 private:
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace kvblend::server
