#include "server/cli/load/rate_search.h"

#include <cmath>

namespace kvblend::server::cli {

RateSearch::RateSearch(double first_rate, double precision)
    : first_rate_(first_rate), precision_(precision) {}

std::optional<double> RateSearch::Next() const {
  if (tries_ == kMaxTries) return std::nullopt;
  if (!upper_) return lower_ == 0 ? first_rate_ : 2 * lower_;
  if (lower_ == 0) return *upper_ / 2;
  if (*upper_ <= lower_ * (1 + precision_)) return std::nullopt;
  return std::sqrt(*upper_ * lower_);
}

void RateSearch::Tell(bool was_borne) {
  const double rate = *Next();
  ++tries_;
  if (was_borne) {
    lower_ = rate;
  } else {
    upper_ = rate;
  }
}

}  // namespace kvblend::server::cli
