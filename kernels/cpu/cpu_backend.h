// A CPU backend whose tiles the caller chooses, which kernels/backend.h does not offer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {

/// CreateCpuBackend with these tiles for bf16 instead of the best ones, so that the conformance suite reaches
/// tiles that BestTiles would not choose on its processor. `bf16_tiles` must outlive the backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendWithTiles(const CpuBackendOptions& options,
                                                                   const Tiles& bf16_tiles);

}  // namespace kvblend::kernels
