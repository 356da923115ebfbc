// Fits learned corrections. For every token of a chunk that stood behind other chunks there is a pair: x, its stored K
// (before RoPE) and V of a layer, and y, those that full prefill gave it there. Least squares with ridge from x to y - x:
//
//   R = (C + ridge diag(C))^-1 D,  C = cov(x, x),  D = cov(x, y - x)
//
// is split into a scale per channel (what regressing each channel on itself gives) and a map of low rank for the rest:
// the directions in which the rest varies most over the tokens, which is reduced-rank regression (Izenman, "Reduced-rank
// regression for the multivariate linear model", Journal of Multivariate Analysis 5, 1975). The offset then fits the means.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/kv/learned_correction.h"

namespace kvblend::kv {

/// Sums over pairs of one layer, all that a fit needs of them: 16 * channels^2 bytes. Not thread-safe.
class PairMoments {
 public:
  explicit PairMoments(int64_t channels);
  /// From sums as the accessors give them.
  PairMoments(int64_t count, std::vector<double> sum_x, std::vector<double> sum_d, std::vector<double> xx,
              std::vector<double> xd, std::vector<double> dd);

  /// stored, fresh: [count, channels]
  void Add(absl::Span<const float> stored, absl::Span<const float> fresh);

  int64_t channels() const { return channels_; }
  int64_t count() const { return count_; }
  const std::vector<double>& sum_x() const { return sum_x_; }  // [channels]
  const std::vector<double>& sum_d() const { return sum_d_; }  // [channels], of y - x
  const std::vector<double>& xx() const { return xx_; }        // [channels, channels]
  const std::vector<double>& xd() const { return xd_; }  // [channels, channels]: x in rows, y - x in columns
  const std::vector<double>& dd() const { return dd_; }  // [channels]: squares of y - x

 private:
  const int64_t channels_;
  int64_t count_ = 0;
  std::vector<double> sum_x_, sum_d_, xx_, xd_, dd_;
};

struct FitOptions {
  int32_t rank = 16;   // 0 .. channels
  double ridge = 0.1;  // of the variances; > 0
};

/// Empty where the pairs show nothing to correct: fewer than two of them, or no difference.
LayerCorrection FitLayer(const PairMoments& pairs, const FitOptions& options);

/// Mean over the pairs of |y - corrected x|^2 divided by that of |y - x|^2, K's and V's channels each on their own and
/// then averaged: 1 is no gain. Exact up to rounding. 1 without pairs.
double ResidualShare(const PairMoments& pairs, const LayerCorrection& correction, int32_t rank);

}  // namespace kvblend::kv
