// The CUDA backend: cuBLASLt for GEMMs, own kernels for the rest, bf16 inputs with fp32 sums.
// docs/cuda-backend.md.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/device_choice.h"

namespace kvblend::kernels {

/// On visible device `index` (CUDA_VISIBLE_DEVICES says what is visible), for the whole process.
/// kFailedPrecondition when the kernels can't run on it or the process uses another one already,
/// kInvalidArgument when there are not so many. The environment's KVBLEND_CUDA_GRAPHS=off has decode steps
/// launched kernel by kernel.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(int index = 0);

/// The devices that are visible, opening none.
CudaProbe ProbeCudaDevices();

}  // namespace kvblend::kernels
