// The CUDA backend: cuBLASLt (or this project's own matmul kernel) for GEMMs, own kernels for the rest, bf16
// inputs with fp32 sums. docs/cuda-backend.md.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

/// On the first visible device (CUDA_VISIBLE_DEVICES chooses). kFailedPrecondition when there is none that
/// the kernels can run on.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend();

}  // namespace kvblend::kernels
