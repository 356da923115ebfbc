// The operations that are measured, each checked against the reference backend before.
#pragma once

#include "absl/status/status.h"
#include "tests/bench/gpu/bench.h"

namespace kvblend::gpu_bench {

/// SelectiveAttention of a whole prompt, of gathered rows, of one token and of a question; AttentionMass;
/// ValueLengths.
absl::Status MeasureAttention(Bench& bench);
/// KvLoad and KvScatter, and what is bound by memory: norms, rotation, activation, deviation, gathering.
absl::Status MeasureMovement(Bench& bench);
/// Linear in the shapes of a layer.
absl::Status MeasureLinear(Bench& bench);

}  // namespace kvblend::gpu_bench
