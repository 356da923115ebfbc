// Tiles (kernels/cpu/machine/tiles.h) whose products AMX computes, and the choice between them and the
// vectors'.
#pragma once

#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {

/// The fastest tiles for `wanted` that this process may use; those of f32 where nothing multiplies bf16.
/// REQUIRES: ApplyInstructionSetLimit was called.
const Tiles& BestTiles(DataType wanted);

#if defined(__x86_64__)
/// Whether this process may use AMX's products of bf16: the processor has them, and the kernel keeps the
/// contents of tiles for this process, which is asked for here, once.
bool RequestAmx();

/// The products of AMX beside the softmax of `vectors`, which must be bf16.
Tiles WithAmxProducts(const Tiles& vectors);
#endif

}  // namespace kvblend::kernels
