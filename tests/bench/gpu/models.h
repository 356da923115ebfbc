// Whole prefills of models with random weights in the shapes of known ones: what full prefill takes, and what
// blending saves when the chunks' KV lies in host memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/bench/gpu/bench.h"

namespace kvblend::gpu_bench {

struct ModelShape {
  std::string name;
  int32_t num_layers, hidden_dim, num_heads, num_kv_heads, head_dim, ffn_dim, vocab_size;
  float rope_freq_base;
};

/// Those that a real GPU is measured with.
std::vector<ModelShape> KnownShapes();
/// A few layers, for the emulated device.
ModelShape TinyShape();

/// One JSON object. REQUIRES: MeasurePeaks.
absl::StatusOr<nlohmann::ordered_json> MeasureModel(Bench& bench, const ModelShape& shape, int device);

}  // namespace kvblend::gpu_bench
