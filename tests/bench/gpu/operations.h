// The operations that are measured, each checked against the reference backend before.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/gpu/bench.h"

namespace kvblend::gpu_bench {

using Lines = std::vector<nlohmann::ordered_json>;

/// SelectiveAttention of a whole prompt, of gathered rows, of one token and of a question; AttentionMass.
absl::Status MeasureAttention(Bench& bench, Lines& lines);
/// KvLoad and KvScatter, and what is bound by memory: norms, rotation, activation, deviation, gathering.
absl::Status MeasureMovement(Bench& bench, Lines& lines);
/// Linear in the shapes of a layer.
absl::Status MeasureLinear(Bench& bench, Lines& lines);

}  // namespace kvblend::gpu_bench
