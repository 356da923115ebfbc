// A correction's map of low rank as the tensor cores read it (kernels/cuda/kv/correct_tiles.cu): bf16, in the
// order of the fragments of mma.m16n8k16 (PTX ISA), so that a lane's share of 32 channels is 32 bytes in one
// run. Which channel is which row or column of a product is free as long as both operands agree: a lane of
// four takes eight neighbouring channels, as they are decoded.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/device/kernels.h"
#include "kernels/kv_correction.h"

namespace kvblend::kernels::cuda {

/// Whether the correction has tiles.
bool HasTiles(const KvCorrectionSpec& spec);

/// Words of [2 cols / kTileChannels][32 lanes][kTileWords]. Word 4 s + 2 t + h of lane 4 n + j of a tile:
/// down's rows 8 j + 4 s + 2 h and the next, column 8 t + n. REQUIRES: HasTiles
std::vector<uint32_t> DownTiles(const KvCorrectionSpec& spec);

/// The same shape. Word 2 t + h of lane 4 n + j: up's rows 2 j + 8 h and the next, channel 8 (n / 2) + 2 t +
/// n % 2 of the tile.
std::vector<uint32_t> UpTiles(const KvCorrectionSpec& spec);

}  // namespace kvblend::kernels::cuda
