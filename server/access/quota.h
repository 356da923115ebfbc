// What a tenant has used of its limits.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/access/key_file.h"

namespace kvblend::server {

/// What a tenant has asked for since the server started, and what was refused for one of its limits.
struct TenantUse {
  int64_t requests = 0;  // calls with its key, those refused among them
  int64_t computed_tokens = 0;
  int64_t refused_for_requests = 0;         // requests_per_minute
  int64_t refused_for_computed_tokens = 0;  // computed_tokens_per_minute
  int64_t refused_for_concurrent = 0;       // concurrent_requests
};

/// A token bucket for each rate: a minute's worth can be used at once, and comes back evenly. Computed tokens
/// are known only afterwards. Until then calls that compute hold an estimate, so that those that begin
/// together do not all find the bucket as it was before any of them; what a call took beyond that is paid by
/// the next ones. Thread-safe.
class Quota {
 public:
  /// What a call holds of the limits. Its quota reads and changes it, nobody else.
  struct Hold {
    bool has_place = false;  // among the calls at once
    bool computing = false;
    int64_t expected = 0;  // tokens of the estimate that are still to come
    int64_t most = 0;      // the limit as it was at the beginning: no call holds more
    int64_t tokens = 0;    // what is held: the smaller of the two
  };

  explicit Quota(const Tenant& tenant) : tenant_(tenant) {}

  /// The limits from now on; what was used stays used.
  void SetLimits(const Tenant& tenant);

  /// Counts a call; every call comes here, and only the limit of calls is asked: one that computes nothing
  /// goes on when the tokens are used up. kResourceExhausted names the limit, with when to try again
  /// (base/retry_delay.h).
  absl::Status TakeRequest(absl::Time now);

  /// Takes one of the places of calls at once, until End. kResourceExhausted as TakeRequest.
  absl::Status Begin(Hold* hold);
  /// The same for a call that will compute about so many tokens, until EndComputing. While others compute,
  /// its estimate must fit beside what was used and they hold; alone it may be as large as it likes, once
  /// nothing is owed.
  absl::Status BeginComputing(int64_t estimated_tokens, absl::Time now, Hold* hold);
  /// Nothing more will be computed; the place stays taken. Once more changes nothing, nor does it for a call
  /// that never began.
  void EndComputing(Hold* hold);
  /// The call is over, its place is free. As EndComputing, and once more changes nothing.
  void End(Hold* hold);
  /// `tokens` were computed, which the estimate had as `expected`.
  void AddComputedTokens(int64_t tokens, int64_t expected, Hold* hold);

  TenantUse use() const;

 private:
  struct Bucket {
    double used = 0;  // of a minute's worth; above it: owed
    absl::Time as_of = absl::InfinitePast();
    void Refill(int64_t per_minute, absl::Time now);
  };

  absl::Status CheckPlaces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakePlace(Hold* hold) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopComputing(Hold* hold) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Puts what is held right, after `expected` changed.
  void Adjust(Hold* hold) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  Tenant tenant_ ABSL_GUARDED_BY(mutex_);
  Bucket requests_ ABSL_GUARDED_BY(mutex_);
  Bucket tokens_ ABSL_GUARDED_BY(mutex_);
  TenantUse use_ ABSL_GUARDED_BY(mutex_);
  int64_t places_taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t computing_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t held_ ABSL_GUARDED_BY(mutex_) = 0;  // tokens, by all that compute
};

}  // namespace kvblend::server
