#include "server/cli/precompute/call_gate.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/retry_delay.h"

namespace kvblend::server::cli {

CallGate::CallGate(Cancellation& cancellation, const Options& options)
    : options_(options),
      most_at_once_(std::numeric_limits<int>::max()),
      on_cancel_(cancellation, [this] { Stop(); }) {}

absl::Status CallGate::Make(absl::FunctionRef<absl::Status()> call) {
  for (int attempt = 0;;) {
    const std::optional<int> before = Enter();
    if (!before.has_value()) return absl::CancelledError("interrupted");
    const absl::Status status = call();
    const int others = std::max(*before, Leave());
    // What does not fit into the store has no time to try again: it never will.
    const std::optional<absl::Duration> delay = RetryDelayOf(status);
    if (!absl::IsResourceExhausted(status) || !delay.has_value()) return status;
    if (others > 0) {  // fewer than were allowed: this happens but a few times
      absl::MutexLock lock(&mutex_);
      most_at_once_ = std::min(most_at_once_, others);
      continue;
    }
    if (attempt >= options_.max_retries) return status;
    const absl::Duration wait = std::max(options_.first_wait * (int64_t{1} << attempt), *delay);
    if (absl::Now() + wait > options_.deadline) {
      return absl::DeadlineExceededError(absl::StrCat("refused until it was too late: ", status.message()));
    }
    if (!Wait(wait)) return absl::CancelledError("interrupted");
    ++attempt;
  }
}

void CallGate::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

std::optional<int> CallGate::Enter() {
  absl::MutexLock lock(&mutex_);
  const auto has_place = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopped_ || under_way_ < most_at_once_;
  };
  mutex_.Await(absl::Condition(&has_place));
  if (stopped_) return std::nullopt;
  return under_way_++;
}

int CallGate::Leave() {
  absl::MutexLock lock(&mutex_);
  return --under_way_;
}

bool CallGate::Wait(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&stopped_), duration);
}

}  // namespace kvblend::server::cli
