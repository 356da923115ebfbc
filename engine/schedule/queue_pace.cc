#include "engine/schedule/queue_pace.h"

#include <algorithm>

namespace kvblend::schedule {

void QueuePace::Works(absl::Time now) { since_ = std::min(since_, now); }

void QueuePace::Ended(double predicted_seconds, absl::Time now, bool more) {
  const double actual = absl::ToDoubleSeconds(std::max(now - since_, absl::ZeroDuration()));
  since_ = more ? now : absl::InfiniteFuture();
  if (predicted_seconds <= 0) return;
  predicted_ = kForget * predicted_ + predicted_seconds;
  actual_ = kForget * actual_ + actual;
}

absl::Duration QueuePace::Of(double predicted_seconds, absl::Time now) const {
  if (predicted_seconds <= 0) return absl::ZeroDuration();
  return std::max(absl::Seconds(predicted_seconds * actual_ / predicted_), now - moved_);
}

}  // namespace kvblend::schedule
