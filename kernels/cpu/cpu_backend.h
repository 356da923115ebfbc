// What kernels/backend.h does not offer to the engine.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {

/// CreateCpuBackend with other tiles of bf16 than the best: for tests of those that the processor would not
/// choose. `bf16_tiles` must outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendWithTiles(const CpuBackendOptions& options,
                                                                   const Tiles& bf16_tiles);

}  // namespace kvblend::kernels
