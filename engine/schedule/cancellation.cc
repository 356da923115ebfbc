#include "engine/schedule/cancellation.h"

#include "absl/strings/str_cat.h"

namespace kvblend::schedule {

absl::Status Cancellation::Check() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::kCancelled:
      return absl::CancelledError("the request was cancelled");
    case State::kShutDown:
      return absl::UnavailableError("the engine is shutting down, and the request was not done in time");
    case State::kGoesOn:
      break;
  }
  if (deadline_ == absl::InfiniteFuture()) return absl::OkStatus();
  const absl::Time now = clock_.Now();
  if (now < deadline_) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "the deadline passed ", absl::FormatDuration(absl::Trunc(now - deadline_, absl::Microseconds(1))),
      " ago, while the request ran"));
}

}  // namespace kvblend::schedule
