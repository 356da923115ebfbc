#include "engine/store/read_meter.h"

namespace kvblend::store {

void ReadMeter::Begin(Tier tier) {
  const absl::Time now = now_();
  absl::MutexLock lock(&mutex_);
  TierState& state = tiers_[tier];
  if (state.reads++ == 0) state.since = now;
}

void ReadMeter::End(Tier tier, int64_t bytes) {
  const absl::Time now = now_();
  absl::MutexLock lock(&mutex_);
  TierState& state = tiers_[tier];
  --state.reads;
  state.bytes += bytes;
  if (state.reads > 0 && state.bytes < kSampleBytes) return;
  // Threads may come here in another order than they looked at the clock.
  if (now > state.since) state.busy += now - state.since;
  state.since = now;
  if (state.busy <= absl::ZeroDuration() || state.bytes == 0) return;  // goes into the next sample
  if (now - state.last_sample > kTrusted) state.rate.Clear();
  state.last_sample = now;
  state.rate.Add(static_cast<double>(state.bytes), absl::ToDoubleSeconds(state.busy));
  state.busy = absl::ZeroDuration();
  state.bytes = 0;
}

std::map<Tier, ReadRate> ReadMeter::Rates() const {
  const absl::Time now = now_();
  std::map<Tier, ReadRate> rates;
  absl::MutexLock lock(&mutex_);
  for (const auto& [tier, state] : tiers_) {
    if (const auto seconds = state.rate.seconds_per_unit()) {
      rates[tier] = {.bytes_per_second = 1 / *seconds, .recent = now - state.last_sample <= kTrusted};
    }
  }
  return rates;
}

}  // namespace kvblend::store
