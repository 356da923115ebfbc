// Intervals for figures over questions, by resampling the questions (Efron, 1979). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace kvblend::server::cli {

/// NaN: there is none.
struct Interval {
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
};

/// A figure with its 95% interval.
struct Estimate {
  double value = std::numeric_limits<double>::quiet_NaN();
  Interval interval = {};
};

/// Draws questions with replacement, always the same draws for as many questions. So figures of several rows
/// over the same questions are resampled together, and the interval of their ratio or difference is a paired
/// one.
class Bootstrap {
 public:
  static constexpr int kResamples = 4000;

  explicit Bootstrap(size_t num_questions);

  /// A figure over the questions that the indices name, one index as often as it was drawn.
  using Statistic = absl::FunctionRef<double(absl::Span<const uint32_t> questions)>;

  /// The figure over every question once, and the middle 95% of the figures over the draws. No interval for
  /// fewer than two questions, or where a draw has no figure.
  Estimate Of(Statistic statistic) const;

  // All vectors have one value per question; NaN anywhere gives NaN.
  Estimate OfMean(absl::Span<const double> values) const;
  Estimate OfMedian(absl::Span<const double> values) const;
  /// Mean of the numerators over mean of the denominators.
  Estimate OfRatio(absl::Span<const double> numerators, absl::Span<const double> denominators) const;

 private:
  const size_t num_questions_;
  std::vector<uint32_t> draws_;  // kResamples times num_questions_
};

}  // namespace kvblend::server::cli
