#include "engine/store/measured_rate.h"

#include <algorithm>
#include <cmath>

namespace kvblend::store {

void MeasuredRate::Add(double amount, double seconds) {
  if (!(amount > 0) || !(seconds > 0) || !std::isfinite(seconds / amount)) return;
  if (samples_.size() < kMaxSamples) {
    samples_.push_back({amount, seconds});
  } else {
    samples_[next_] = {amount, seconds};
    next_ = (next_ + 1) % kMaxSamples;
  }
}

void MeasuredRate::Clear() {
  samples_.clear();
  next_ = 0;
}

std::optional<double> MeasuredRate::seconds_per_unit() const {
  if (samples_.empty()) return std::nullopt;
  std::vector<Sample> sorted = samples_;
  std::sort(sorted.begin(), sorted.end(),
            [](const Sample& a, const Sample& b) { return a.seconds * b.amount < b.seconds * a.amount; });
  double total = 0;
  for (const Sample& sample : sorted) total += sample.amount;
  double below = 0;
  for (const Sample& sample : sorted) {
    below += sample.amount;
    if (2 * below >= total) return sample.seconds / sample.amount;
  }
  return sorted.back().seconds / sorted.back().amount;
}

}  // namespace kvblend::store
