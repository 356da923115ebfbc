// Models with random weights in the shapes of known ones, made on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/learned_correction.h"
#include "engine/runtime/model_runtime.h"
#include "tests/bench/gpu/bench.h"
#include "tests/bench/gpu/staged_backend.h"

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

/// A runtime as ModelRuntime::Load makes it, but without a file: no tokenizer, no chat template, bf16 weights
/// and pages and int8 chunks. Its pages hold `num_sequences` of `sizes.tokens` tokens and one page more.
/// `staged`: its backend.
absl::StatusOr<std::unique_ptr<ModelRuntime>> MakeRuntime(const ModelShape& shape, const Sizes& sizes,
                                                          int device, StagedBackend** staged,
                                                          int64_t num_sequences);

/// A random correction of rank 16 for all layers but the first.
absl::StatusOr<std::unique_ptr<kv::LoadedCorrection>> MakeCorrection(const ModelRuntime& runtime);

}  // namespace kvblend::gpu_bench
