// Weights of random values that are made on the device, so that a model of 14 GB takes no host memory and no
// file.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/launch.h"

namespace kvblend::gpu_bench {

/// Fills bf16 values, uniform in [-bound, bound): the i-th is a function of seed and i alone.
kernels::cuda::LaunchError LaunchFillRandom(kernels::cuda::StreamHandle stream, uint16_t* out, int64_t count,
                                            float bound, uint64_t seed);

/// For the CUDA backend only. Uniform with variance 1 / cols, so that a product keeps the size of its input.
/// REQUIRES: cols is a multiple of 8.
absl::StatusOr<std::unique_ptr<kernels::PackedWeights>> MakeRandomWeights(int64_t rows, int64_t cols,
                                                                          kernels::WeightUsage usage,
                                                                          uint64_t seed);

}  // namespace kvblend::gpu_bench
