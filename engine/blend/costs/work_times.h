// How long the work of one prefill takes, and on what: others have their turns between its steps, and on a
// GPU work runs behind the host that enqueues it, so the time is taken on the stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// Accounts that seconds of work are charged to, one at a time. Not thread-safe.
class WorkTimes {
 public:
  using Account = int32_t;
  static constexpr Account kNobody = -1;

  explicit WorkTimes(std::unique_ptr<kernels::StreamClock> clock) : clock_(std::move(clock)) {}

  Account Open();
  /// What is enqueued from now on is charged to this account.
  void Charge(Account account);
  Account charged() const { return charged_; }

  /// Books what was charged since the last time. Errors: the stream's, of any Charge.
  /// REQUIRES: the stream has been synchronised since the last Charge to another account.
  absl::Status Settle();
  /// What was booked.
  double Seconds(Account account) const { return seconds_[account]; }
  /// The same of all accounts together.
  double Total() const { return std::accumulate(seconds_.begin(), seconds_.end(), 0.0); }

 private:
  struct Stretch {
    Account account;
    size_t begin, end;  // marks
  };

  const std::unique_ptr<kernels::StreamClock> clock_;
  std::vector<double> seconds_;
  std::vector<Stretch> stretches_;  // not booked yet
  Account charged_ = kNobody;
  size_t since_ = 0;  // mark
  absl::Status status_;
};

/// Charges to an account while it lives, and then again to the one before. Without `times` it does nothing.
class Charged {
 public:
  Charged(WorkTimes* times, WorkTimes::Account account)
      : times_(times), before_(times == nullptr ? WorkTimes::kNobody : times->charged()) {
    if (times_ != nullptr) times_->Charge(account);
  }
  ~Charged() {
    if (times_ != nullptr) times_->Charge(before_);
  }
  Charged(const Charged&) = delete;
  Charged& operator=(const Charged&) = delete;

 private:
  WorkTimes* const times_;
  const WorkTimes::Account before_;
};

}  // namespace kvblend::blend
