// The calls of a command that makes many, to a server that takes only so many in a minute, or at once.
#pragma once

#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/cli/cancellation.h"

namespace kvblend::server::cli {

/// A call that is refused with a time to try again (base/retry_delay.h), as by a full queue or a tenant's
/// limits, is made again. While others of the command are under way, it is these that may have taken its
/// place: then there are fewer at once from then on, and it waits for one of them to end. Otherwise it waits
/// that time at least, and longer each time. Thread-safe.
class CallGate {
 public:
  struct Options {
    absl::Time deadline = absl::InfiniteFuture();  // of everything, the waiting included
    int max_retries = 7;                           // of a call that was refused while it was the only one
    absl::Duration first_wait = absl::Milliseconds(500);
  };

  /// Stops once `cancellation` is requested, which must outlive it.
  CallGate(Cancellation& cancellation, const Options& options);

  /// The call's last answer. Where there was none, or it was refused and can't be made again: kCancelled
  /// after Stop, kDeadlineExceeded when the next try would be too late.
  absl::Status Make(absl::FunctionRef<absl::Status()> call);
  template <typename Response>
  absl::StatusOr<Response> Ask(absl::FunctionRef<absl::StatusOr<Response>()> call) {
    absl::StatusOr<Response> response;
    const absl::Status status = Make([&] {
      response = call();
      return response.status();
    });
    if (!status.ok()) return status;
    return response;
  }

  /// No call is made any more, and none waits.
  void Stop();

  absl::Time deadline() const { return options_.deadline; }

 private:
  /// Waits for a place. How many others are under way; none: stopped.
  std::optional<int> Enter();
  /// How many others still are.
  int Leave();
  /// False: stopped.
  bool Wait(absl::Duration duration);

  const Options options_;
  absl::Mutex mutex_;
  int under_way_ ABSL_GUARDED_BY(mutex_) = 0;
  int most_at_once_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  const Cancellation::Listener on_cancel_;
};

}  // namespace kvblend::server::cli
