#include "engine/blend/costs/work_times.h"

#include "base/status_macros.h"

namespace kvblend::blend {

WorkTimes::Account WorkTimes::Open() {
  seconds_.push_back(0);
  return static_cast<Account>(seconds_.size()) - 1;
}

void WorkTimes::Charge(Account account) {
  if (account == charged_ || !status_.ok()) return;
  const absl::StatusOr<size_t> mark = clock_->Mark();
  if (!mark.ok()) {
    status_ = mark.status();
    return;
  }
  if (charged_ != kNobody) stretches_.push_back({charged_, since_, *mark});
  charged_ = account;
  since_ = *mark;
}

absl::Status WorkTimes::Settle() {
  KVBLEND_RETURN_IF_ERROR(status_);
  for (const Stretch& stretch : stretches_) {
    KVBLEND_ASSIGN_OR_RETURN(const double seconds, clock_->SecondsBetween(stretch.begin, stretch.end));
    seconds_[stretch.account] += seconds;
  }
  stretches_.clear();
  return absl::OkStatus();
}

}  // namespace kvblend::blend
