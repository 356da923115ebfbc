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

  /// By the client. Of this and ShutDown the first call counts; never undone.
  void Cancel() { End(State::kCancelled); }
  /// Because the engine ends: not the client's wish, who may ask another server.
  void ShutDown() { End(State::kShutDown); }

  /// kCancelled after Cancel; kUnavailable after ShutDown; kDeadlineExceeded from the deadline on, saying by
  /// how much it was missed.
  absl::Status Check() const;

 private:
  enum class State { kGoesOn, kCancelled, kShutDown };

  void End(State state) {
    State goes_on = State::kGoesOn;
    state_.compare_exchange_strong(goes_on, state, std::memory_order_acq_rel);
  }

  const absl::Time deadline_;
  Clock& clock_;
  std::atomic<State> state_ = State::kGoesOn;
};

}  // namespace kvblend::schedule
