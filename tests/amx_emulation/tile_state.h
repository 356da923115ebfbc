// The tiles of a thread, palette 1, and what AMX's instructions do to them: values, sizes, roundings and
// faults as in Intel's Software Developer's Manual, volume 2. What the manual makes a fault (a tile that is
// not configured, sizes that do not fit, a reserved byte) ends the program with "AMX emulation: <what>" on
// standard error.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvblend::amx_emulation {

class TileState {
 public:
  static TileState& OfThread();

  /// LDTILECFG of 64 bytes.
  void Configure(const std::byte* config);
  /// TILERELEASE
  void Release();
  /// TILEZERO
  void Zero(int tile);
  /// TILELOADD, TILELOADDT1
  void Load(int tile, const std::byte* rows, int64_t stride);
  /// TILESTORED
  void Store(int tile, std::byte* rows, int64_t stride);
  /// TDPBF16PS
  void AddProducts(int c, int a, int b);

 private:
  static constexpr int kNumTiles = 8, kMaxRows = 16, kMaxRowBytes = 64;

  struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) std::array<std::array<std::byte, kMaxRowBytes>, kMaxRows> data{};
  };
  Tile& Configured(int tile);

  bool configured_ = false;
  std::array<Tile, kNumTiles> tiles_;
};

/// What was emulated so far, in all threads.
struct Counts {
  int64_t products;
  int64_t configured, released;  // equal when no thread's tiles are in use
};
Counts Executed();

}  // namespace kvblend::amx_emulation
