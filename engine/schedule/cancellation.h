// Tells running work to stop: a flag that anyone may raise, and a deadline. Forward passes look at it between
// layers, so that work for a client who has gone ends within one layer.
//
// Thread safety: every method may be called from any thread. Share it by std::shared_ptr between whoever
// cancels and whoever works.
#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/schedule/clock.h"

namespace kvblend::schedule {

class Cancellation {
 public:
  explicit Cancellation(absl::Time deadline = absl::InfiniteFuture(), Clock& clock = Clock::System())
      : deadline_(deadline), clock_(clock) {}
  Cancellation(const Cancellation&) = delete;
  Cancellation& operator=(const Cancellation&) = delete;

  absl::Time deadline() const { return deadline_; }

  /// Idempotent; never undone.
  void Cancel() { cancelled_.store(true, std::memory_order_release); }

  /// kCancelled after Cancel; kDeadlineExceeded from the deadline on, saying by how much it was missed.
  absl::Status Check() const;

 private:
  const absl::Time deadline_;
  Clock& clock_;
  std::atomic<bool> cancelled_ = false;
};

}  // namespace kvblend::schedule
