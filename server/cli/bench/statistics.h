// Small statistics for measurements. Pure functions; any thread.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::server::cli {

/// NaN when there are no values, here and below.
double Mean(absl::Span<const double> values);

/// Linear interpolation between the two nearest order statistics (NumPy's default); `fraction` in [0, 1].
double Percentile(absl::Span<const double> values, double fraction);

inline double Median(absl::Span<const double> values) { return Percentile(values, 0.5); }

/// McNemar's exact test, two-sided: how likely it is that pairs which differ split at least as unevenly as
/// `lost` and `won`, if both ways are equally likely. 1 where no pair differs.
double McNemarP(int lost, int won);

/// Kullback-Leibler divergence KL(p || q) in nats of two distributions given as natural log-probabilities
/// over the same vocabulary, summed in double. Outcomes that p excludes add nothing. kInvalidArgument when
/// the sizes differ or are 0.
absl::StatusOr<double> KlDivergence(absl::Span<const float> log_p, absl::Span<const float> log_q);

}  // namespace kvblend::server::cli
