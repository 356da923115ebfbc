#include "server/cli/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvblend::server::cli {

double Mean(absl::Span<const double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double Percentile(absl::Span<const double> values, double fraction) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const double rank = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], rank - static_cast<double>(below));
}

double McNemarP(int lost, int won) {
  const int pairs = lost + won;
  double tail = 0;  // probability of min(lost, won) or fewer heads among as many throws of a fair coin
  for (int k = 0; k <= std::min(lost, won); ++k) {
    tail += std::exp(std::lgamma(pairs + 1.0) - std::lgamma(k + 1.0) - std::lgamma(pairs - k + 1.0) -
                     pairs * std::log(2.0));
  }
  return std::min(1.0, 2 * tail);
}

absl::StatusOr<double> KlDivergence(absl::Span<const float> log_p, absl::Span<const float> log_q) {
  if (log_p.empty() || log_p.size() != log_q.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KL divergence needs two distributions over one vocabulary, got ", log_p.size(), " and ",
                     log_q.size(), " log-probabilities"));
  }
  double divergence = 0;
  for (size_t i = 0; i < log_p.size(); ++i) {
    const double p = std::exp(static_cast<double>(log_p[i]));
    if (p > 0) divergence += p * (static_cast<double>(log_p[i]) - static_cast<double>(log_q[i]));
  }
  return divergence;
}

}  // namespace kvblend::server::cli
