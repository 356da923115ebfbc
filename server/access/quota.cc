#include "server/access/quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/retry_delay.h"
#include "base/status_macros.h"

namespace kvblend::server {
namespace {

/// How long a bucket that leaks `per_minute` takes to lose `excess`.
absl::Duration TimeToLose(double excess, int64_t per_minute) {
  return absl::Minutes(excess / static_cast<double>(per_minute));
}

absl::Status Exhausted(const Tenant& tenant, const char* what, int64_t limit) {
  return absl::ResourceExhaustedError(
      absl::StrCat("tenant '", tenant.name, "' has reached its limit of ", limit, " ", what));
}

}  // namespace

void Quota::SetLimits(const Tenant& tenant) {
  absl::MutexLock lock(&mutex_);
  tenant_ = tenant;
}

void Quota::Bucket::Refill(int64_t per_minute, absl::Time now) {
  if (as_of != absl::InfinitePast() && now > as_of) {
    const double minutes = absl::ToDoubleSeconds(now - as_of) / 60;
    used = std::max(0.0, used - minutes * static_cast<double>(per_minute));
  }
  as_of = std::max(as_of, now);
}

absl::Status Quota::TakeRequest(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  ++use_.requests;
  requests_.Refill(tenant_.requests_per_minute, now);
  const int64_t limit = tenant_.requests_per_minute;
  if (limit == 0) return absl::OkStatus();
  if (const double excess = requests_.used + 1 - static_cast<double>(limit); excess > 0) {
    ++use_.refused_for_requests;
    return WithRetryDelay(Exhausted(tenant_, "requests per minute", limit), TimeToLose(excess, limit));
  }
  requests_.used += 1;
  return absl::OkStatus();
}

absl::Status Quota::CheckPlaces() {
  if (tenant_.concurrent_requests == 0 || places_taken_ < tenant_.concurrent_requests)
    return absl::OkStatus();
  ++use_.refused_for_concurrent;
  return Exhausted(tenant_, "requests at once", tenant_.concurrent_requests);
}

void Quota::TakePlace(Hold* hold) {
  ++places_taken_;
  hold->has_place = true;
}

absl::Status Quota::Begin(Hold* hold) {
  absl::MutexLock lock(&mutex_);
  KVBLEND_RETURN_IF_ERROR(CheckPlaces());
  TakePlace(hold);
  return absl::OkStatus();
}

absl::Status Quota::BeginComputing(int64_t estimated_tokens, absl::Time now, Hold* hold) {
  absl::MutexLock lock(&mutex_);
  KVBLEND_RETURN_IF_ERROR(CheckPlaces());
  const int64_t limit = tenant_.computed_tokens_per_minute;
  if (limit > 0) {
    tokens_.Refill(limit, now);
    const int64_t beside = computing_ == 0 ? 0 : held_ + std::min(estimated_tokens, limit);
    const double excess = tokens_.used + static_cast<double>(beside - limit);
    if (excess > 0) {
      ++use_.refused_for_computed_tokens;
      const char* what = "computed tokens per minute";
      if (beside > 0) what = "computed tokens per minute, with what its other requests may still compute";
      return WithRetryDelay(Exhausted(tenant_, what, limit), TimeToLose(excess, limit));
    }
  }
  TakePlace(hold);
  ++computing_;
  hold->computing = true;
  hold->expected = estimated_tokens;
  hold->most = limit;
  Adjust(hold);
  return absl::OkStatus();
}

void Quota::EndComputing(Hold* hold) {
  absl::MutexLock lock(&mutex_);
  StopComputing(hold);
}

void Quota::End(Hold* hold) {
  absl::MutexLock lock(&mutex_);
  StopComputing(hold);
  if (hold->has_place) --places_taken_;
  hold->has_place = false;
}

void Quota::StopComputing(Hold* hold) {
  if (!hold->computing) return;
  --computing_;
  hold->computing = false;
  hold->expected = 0;
  Adjust(hold);
}

void Quota::AddComputedTokens(int64_t tokens, int64_t expected, Hold* hold) {
  absl::MutexLock lock(&mutex_);
  use_.computed_tokens += tokens;
  if (tenant_.computed_tokens_per_minute > 0) tokens_.used += static_cast<double>(tokens);
  hold->expected = std::max<int64_t>(0, hold->expected - expected);
  Adjust(hold);
}

TenantUse Quota::use() const {
  absl::MutexLock lock(&mutex_);
  return use_;
}

void Quota::Adjust(Hold* hold) {
  const int64_t tokens = std::min(hold->expected, hold->most);
  held_ += tokens - hold->tokens;
  hold->tokens = tokens;
}

}  // namespace kvblend::server
