// How fast a queue moves, learned from the predicted times of its jobs and from how long they really took,
// including everything else that was done meanwhile. So later predictions allow for a factor by which
// predictions are wrong, and for answers that are decoded in between.
#pragma once

#include "absl/time/time.h"

namespace kvblend::schedule {

/// Thread safety: none; the scheduler guards it.
class QueuePace {
 public:
  /// Work begins that goes on until the next Ended, or has gone on since the last one.
  void Works(absl::Time now);
  /// A job that was predicted to take so many seconds is over. `more`: others wait or are in progress.
  void Ended(double predicted_seconds, absl::Time now, bool more);
  /// No job is left, though none has ended now: those that waited were abandoned.
  void Rests() { since_ = absl::InfiniteFuture(); }

  /// The first job waits, or one has begun: it has been standing still until now.
  void Moves(absl::Time now) { moved_ = now; }

  /// How long jobs take that were predicted to take so many seconds together; as predicted until some have
  /// ended. No less than the queue has been standing still, if something waits: where no answer ends, nothing
  /// begins, and there is nothing to learn from.
  absl::Duration Of(double predicted_seconds, absl::Time now) const;

 private:
  // Sums in which each end counts kForget of the one after it. They begin as if a little had been right.
  static constexpr double kForget = 0.9;
  double predicted_ = 0.01;
  double actual_ = 0.01;
  absl::Time since_ = absl::InfiniteFuture();  // what goes on; infinite: nothing does
  absl::Time moved_ = absl::InfiniteFuture();
};

}  // namespace kvblend::schedule
