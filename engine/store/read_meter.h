// How fast the tiers below host memory are, measured from the layers that were really read.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/api/tier.h"
#include "engine/store/measured_rate.h"

namespace kvblend::store {

struct ReadRate {
  double bytes_per_second = 0;
  bool recent = true;  // something was read within ReadMeter::kTrusted
};

/// Bytes per second, counting only time in which the tier had at least one read to do. Reads that overlap
/// share that time. So the rate is that of a prompt whose layers are asked for one after the other. Checking
/// what was read is part of the time. Thread-safe.
class ReadMeter {
 public:
  /// After so long without a read, the next one makes the meter forget what it measured before. So a tier
  /// that is no longer read because it was slow gets another chance.
  static constexpr absl::Duration kTrusted = absl::Minutes(1);

  /// `now`: thread-safe.
  explicit ReadMeter(std::function<absl::Time()> now) : now_(std::move(now)) {}

  /// A read is handed to the tier.
  void Begin(Tier tier);
  /// It has ended. `bytes`: 0 when nothing arrived. REQUIRES: a Begin of this tier for every End.
  void End(Tier tier, int64_t bytes);

  /// The rates of all tiers that anything was read from.
  std::map<Tier, ReadRate> Rates() const;

 private:
  /// A sample ends with the reads that wait, or after so many bytes: a long load counts before it is over.
  static constexpr int64_t kSampleBytes = int64_t{4} << 20;

  struct TierState {
    int64_t reads = 0;  // with the tier
    absl::Time since;   // of the current sample, while reads > 0
    absl::Duration busy;
    int64_t bytes = 0;
    absl::Time last_sample = absl::InfinitePast();
    MeasuredRate rate;
  };

  const std::function<absl::Time()> now_;
  mutable absl::Mutex mutex_;
  std::map<Tier, TierState> tiers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::store
