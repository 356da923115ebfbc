// What a tenant has used of its limits.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/access/key_file.h"

namespace kvblend::server {

/// A token bucket for each rate: a minute's worth can be used at once, and comes back evenly. Computed tokens are known only
/// afterwards, so what a request took too much is paid by the next ones. Thread-safe.
class Quota {
 public:
  explicit Quota(const Tenant& tenant) : tenant_(tenant) {}

  /// The limits from now on; what was used stays used.
  void SetLimits(const Tenant& tenant);

  /// Counts a call; every call comes here. kResourceExhausted names the limit, with when to try again
  /// (base/retry_delay.h).
  absl::Status TakeRequest(absl::Time now);

  /// Counts a call that computes; it ends with EndComputing.
  absl::Status BeginComputing();
  void EndComputing();
  void AddComputedTokens(int64_t tokens);

 private:
  struct Bucket {
    double used = 0;  // of a minute's worth; above it: owed
    absl::Time as_of = absl::InfinitePast();
    void Refill(int64_t per_minute, absl::Time now);
  };

  mutable absl::Mutex mutex_;
  Tenant tenant_ ABSL_GUARDED_BY(mutex_);
  Bucket requests_ ABSL_GUARDED_BY(mutex_);
  Bucket tokens_ ABSL_GUARDED_BY(mutex_);
  int64_t computing_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvblend::server
