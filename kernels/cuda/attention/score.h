// What attention makes of a score beside its scale, and of a softmax's sum; which keys it sees. For .cu
// files.
#pragma once

#include "kernels/cuda/attention/params.h"
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kNegativeInfinity = -__builtin_inff();

/// The first key that a query at `position` sees.
KVBLEND_DEVICE int FirstVisible(const AttentionParams& p, int position) {
  return p.sliding_window == 0 ? 0 : Max(0, position - p.sliding_window + 1);
}

/// A score in units of 1 / log2_scale, off by 2^-22 of the cap at most. REQUIRES: p.soft_cap is not 0.
KVBLEND_DEVICE float CappedScore(const AttentionParams& p, float score) {
  return p.soft_cap * TanhFast(score * p.inverse_soft_cap);
}

/// What a head's sink adds to the sum of 2^(score - max) over a row's keys; `max` in base 2.
KVBLEND_DEVICE float SinkTerm(const AttentionParams& p, int64_t head, float max) {
  return p.sinks == nullptr ? 0.0f : Exp2(FmaRn(p.sinks[head], kLog2E, -max));
}

}  // namespace kvblend::kernels::cuda
