// Whole prefills of models with random weights in the shapes of known ones: what full prefill takes, what
// blending saves when the chunks' KV lies in host memory, and steps of decoding.
#pragma once

#include "absl/status/statusor.h"
#include "tests/bench/gpu/bench.h"
#include "tests/bench/gpu/random_model.h"

namespace kvblend::gpu_bench {

/// One JSON object. REQUIRES: MeasurePeaks.
absl::StatusOr<nlohmann::ordered_json> MeasureModel(Bench& bench, const ModelShape& shape, int device);

}  // namespace kvblend::gpu_bench
