// Fits learned corrections to pairs (engine/kv/pair_moments.h). Each place in a chunk has its own mean of x
// and of d = y - x; what is left of them about these means is regressed with ridge:
//
//   R = (C + (ridge + 2 channels / pairs) diag(C))^-1 D,  C = cov(x, x),  D = cov(x, d)
//
// The fewer pairs, the more ridge: what leaves least is about noise over signal times channels over pairs (A.
// Hoerl, R. Kennard, K. Baldwin: "Ridge regression: some simulations", 1975), and pairs of one chunk are not
// independent. R is split into a scale per channel (what regressing each channel on itself gives) and a map
// of low rank for the rest: the directions in which the rest varies most over the tokens, which is
// reduced-rank regression (Izenman, "Reduced-rank regression for the multivariate linear model", Journal of
// Multivariate Analysis 5, 1975). The offsets then fit the means. Directions are in order, those of most
// variance first; those that are not worth what they cost are zeros.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "engine/kv/learned_correction.h"
#include "engine/kv/pair_moments.h"

namespace kvblend::kv {

struct FitOptions {
  /// The most, 0 .. channels; moments of kDiagonal are fitted without a map, whatever this is.
  int32_t rank = 16;
  double ridge = 0.1;  // of the variances, from any number of pairs; > 0
  /// What the next kRankStep directions must take of a layer's squared deviation to be kept. They cost every
  /// prompt the same in each layer, and are worth more in some than in others.
  double least_gain = 1.0 / 64;
  static constexpr int32_t kRankStep = 8;  // what kernels compute at once
};

/// The rank that a fit has.
int32_t FittedRank(PairMoments::Kind kind, int64_t channels, const FitOptions& options);
inline int32_t FittedRank(const PairMoments& pairs, const FitOptions& options) {
  return FittedRank(pairs.kind(), pairs.channels(), options);
}

/// Empty where the pairs show nothing to correct: fewer than two of them, or no difference.
LayerCorrection FitLayer(const PairMoments& pairs, const FitOptions& options);
/// The same in steps: keep_going is asked between them, and false ends it with nothing.
std::optional<LayerCorrection> FitLayer(const PairMoments& pairs, const FitOptions& options,
                                        absl::FunctionRef<bool()> keep_going);

/// K's part of the correction as strong as `strength` says, V's as it is. REQUIRES: not empty.
void ScaleKeyPart(double strength, int32_t rank, LayerCorrection& correction);

/// Mean over the pairs of |y - corrected x|^2 divided by that of |y - x|^2, K's and V's channels each on
/// their own and then averaged: 1 is no gain. Exact up to rounding. 1 without pairs. REQUIRES: kFull, or rank
/// 0.
double ResidualShare(const PairMoments& pairs, const LayerCorrection& correction, int32_t rank);

}  // namespace kvblend::kv
