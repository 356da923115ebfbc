// For what may happen thousands of times a second, and should not fill the log.
#pragma once

#include <chrono>
#include <optional>

namespace kvblend {

/// Of all events of one kind, those that get a line in the log. Not thread-safe.
class OnceAMinute {
 public:
  /// Whether this event gets one: the first does, and then one per minute.
  bool IsDue() {
    const Clock::time_point now = Clock::now();
    if (last_.has_value() && now - *last_ < std::chrono::minutes(1)) return false;
    last_ = now;
    return true;
  }

 private:
  using Clock = std::chrono::steady_clock;  // which nobody sets

  std::optional<Clock::time_point> last_;
};

}  // namespace kvblend
