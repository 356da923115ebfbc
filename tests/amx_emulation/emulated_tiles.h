// AMX's tiles on any processor: the same products over emulated instructions.
#pragma once

#include <cstddef>

#include "kernels/cpu/amx/products.h"
#include "tests/amx_emulation/tile_state.h"

namespace kvblend::amx_emulation {

/// Stands for kernels::AmxInstructions.
struct EmulatedInstructions {
  static void Configure(const kernels::AmxConfig& config) {
    TileState::OfThread().Configure(reinterpret_cast<const std::byte*>(&config));
  }
  static void Release() { TileState::OfThread().Release(); }
  template <int kTile>
  static void Zero() {
    TileState::OfThread().Zero(kTile);
  }
  template <int kTile>
  static void Load(const void* rows, int64_t stride) {
    TileState::OfThread().Load(kTile, static_cast<const std::byte*>(rows), stride);
  }
  template <int kTile>
  static void LoadOnce(const void* rows, int64_t stride) {
    Load<kTile>(rows, stride);
  }
  template <int kTile>
  static void Store(void* rows, int64_t stride) {
    TileState::OfThread().Store(kTile, static_cast<std::byte*>(rows), stride);
  }
  template <int kC, int kA, int kB>
  static void AddProducts() {
    TileState::OfThread().AddProducts(kC, kA, kB);
  }
};

/// kernels::WithAmxProducts, emulated.
inline kernels::Tiles WithEmulatedProducts(const kernels::Tiles& vectors) {
  kernels::Tiles tiles = kernels::MakeAmxTiles<EmulatedInstructions>(vectors);
  tiles.name = "emulated amx_bf16";
  return tiles;
}

}  // namespace kvblend::amx_emulation
