// A CPU backend whose tiles the caller chooses, which kernels/backend.h does not offer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {

/// CreateCpuBackend with these tiles in place of the best ones, so that the conformance suite reaches tiles
/// that would not be chosen on its processor: of bf16, or of codes for attention. `tiles` must outlive the
/// backend.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackendWithTiles(const CpuBackendOptions& options,
                                                                   const Tiles& tiles);

}  // namespace kvblend::kernels
