// Tiles (kernels/cpu/machine/tiles.h) whose products AMX computes. Only for x86-64.
#pragma once

#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {

/// Whether this process may use AMX's products of bf16: the processor has them, and the kernel keeps the
/// contents of tiles for this process, which is asked for here, once.
bool RequestAmx();

/// The products of AMX beside the softmax of `vectors`, which must be bf16.
Tiles WithAmxProducts(const Tiles& vectors);

}  // namespace kvblend::kernels
