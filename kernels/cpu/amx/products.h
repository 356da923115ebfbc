// The products of kernels/cpu/machine/tiles.h by AMX, over the instructions of instructions.h or others that
// do the same: tests have some for processors without AMX.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/amx/instructions.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {

/// Two by two tiles of sums, 32 rows by 32 columns, so that every tile that is loaded is multiplied twice.
/// Operands are whole tiles: callers pad rows and steps, and so all tiles have one size.
template <class Amx>
class AmxProducts {
 public:
  static constexpr int64_t kRows = 2 * AmxConfig::kMaxRows;
  static constexpr int64_t kWords = AmxConfig::kMaxRowBytes / sizeof(uint32_t);  // steps, columns of a tile
  static_assert(kRows <= kMaxTileRows && kKeyStep % kWords == 0 && kPanelKeys % (2 * kWords) == 0);

  static void Enter() { Amx::Configure(kWholeTiles); }
  static void Leave() { Amx::Release(); }

  static void Linear(const uint32_t* rows, int64_t row_stride, const uint32_t* block, int64_t steps,
                     bool accumulate, bool /*prefetch*/, float* out, int64_t out_stride) {
    for (int64_t column = 0; column < kPackedBlock; column += 2 * kWords) {
      if (accumulate) {
        Pair::Load(out + column, out_stride);
      } else {
        Pair::Zero();
      }
      Pair::AddProducts(rows, row_stride, block + column, kPackedBlock, steps);
      Pair::Store(out + column, out_stride);
    }
  }

  static void Scores(const uint32_t* queries, const uint32_t* const* panels, int64_t steps, int64_t keys,
                     float* scores) {
    for (int64_t key = 0; key < keys; key += 2 * kWords) {
      Pair::Zero();
      Pair::AddProducts(queries, steps, panels[key / kPanelKeys] + key % kPanelKeys, kPanelKeys, steps);
      Pair::Store(scores + key, kKeyBlock);
    }
  }

  static void AddValues(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                        int64_t columns, const float* alphas, float* out) {
    for (int64_t r = 0; r < kRows; ++r) {
      if (alphas[r] == 1.0f) continue;  // most: maxima are found early
      simd::ScaleRow(out + r * columns, alphas[r], out + r * columns, DataType::kF32, columns);
    }
    int64_t column = 0;
    for (; column + 2 * kWords <= columns; column += 2 * kWords) {
      AddValueColumns<Pair>(probabilities, panels, steps, column, columns, out + column);
    }
    if (column < columns) {
      AddValueColumns<Single>(probabilities, panels, steps, column, columns, out + column);
    }
  }

 private:
  enum Tile : int {
    kTopLeft,  // sums
    kTopRight,
    kBottomLeft,
    kBottomRight,
    kTop,  // rows
    kBottom,
    kLeft,  // columns
    kRight,
  };

  static constexpr AmxConfig WholeTiles() {
    AmxConfig config;
    for (int tile = 0; tile < AmxConfig::kNumTiles; ++tile) {
      config.row_bytes[tile] = AmxConfig::kMaxRowBytes;
      config.rows[tile] = AmxConfig::kMaxRows;
    }
    return config;
  }
  static constexpr AmxConfig kWholeTiles = WholeTiles();

  static constexpr int64_t Bytes(int64_t words) { return words * static_cast<int64_t>(sizeof(uint32_t)); }

  /// Sums of kRows rows and 2 * kWords columns, or kWords where kOneColumn; `stride` words apart in memory.
  template <bool kOneColumn>
  struct Sums {
    static void Zero() {
      Amx::template Zero<kTopLeft>();
      Amx::template Zero<kBottomLeft>();
      if constexpr (!kOneColumn) {
        Amx::template Zero<kTopRight>();
        Amx::template Zero<kBottomRight>();
      }
    }

    static void Load(const float* out, int64_t stride) {
      Amx::template Load<kTopLeft>(out, Bytes(stride));
      Amx::template Load<kBottomLeft>(out + AmxConfig::kMaxRows * stride, Bytes(stride));
      if constexpr (!kOneColumn) {
        Amx::template Load<kTopRight>(out + kWords, Bytes(stride));
        Amx::template Load<kBottomRight>(out + AmxConfig::kMaxRows * stride + kWords, Bytes(stride));
      }
    }

    static void Store(float* out, int64_t stride) {
      Amx::template Store<kTopLeft>(out, Bytes(stride));
      Amx::template Store<kBottomLeft>(out + AmxConfig::kMaxRows * stride, Bytes(stride));
      if constexpr (!kOneColumn) {
        Amx::template Store<kTopRight>(out + kWords, Bytes(stride));
        Amx::template Store<kBottomRight>(out + AmxConfig::kMaxRows * stride + kWords, Bytes(stride));
      }
    }

    /// += rows * columns. rows: [kRows][row_stride]; columns: [steps][column_stride]
    static void AddProducts(const uint32_t* rows, int64_t row_stride, const uint32_t* columns,
                            int64_t column_stride, int64_t steps) {
      for (int64_t step = 0; step < steps; step += kWords, columns += kWords * column_stride) {
        Amx::template Load<kLeft>(columns, Bytes(column_stride));
        Amx::template Load<kTop>(rows + step, Bytes(row_stride));
        Amx::template AddProducts<kTopLeft, kTop, kLeft>();
        Amx::template Load<kBottom>(rows + AmxConfig::kMaxRows * row_stride + step, Bytes(row_stride));
        Amx::template AddProducts<kBottomLeft, kBottom, kLeft>();
        if constexpr (!kOneColumn) {
          Amx::template Load<kRight>(columns + kWords, Bytes(column_stride));
          Amx::template AddProducts<kTopRight, kTop, kRight>();
          Amx::template AddProducts<kBottomRight, kBottom, kRight>();
        }
      }
    }
  };
  using Pair = Sums</*kOneColumn=*/false>;
  using Single = Sums</*kOneColumn=*/true>;

  template <class Columns>
  static void AddValueColumns(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                              int64_t column, int64_t columns, float* out) {
    constexpr int64_t kPanelSteps = kPanelKeys / 2;
    Columns::Load(out, columns);
    for (int64_t step = 0; step < steps; step += kPanelSteps) {
      Columns::AddProducts(probabilities + step, kKeyBlock / 2, *panels++ + column, columns,
                           std::min(kPanelSteps, steps - step));
    }
    Columns::Store(out, columns);
  }
};

/// Products by `Amx` beside the softmax of `vectors`, which must be of bf16.
template <class Amx>
Tiles MakeAmxTiles(const Tiles& vectors) {
  using Products = AmxProducts<Amx>;
  Tiles tiles = vectors;
  tiles.name = "amx_bf16";
  tiles.dtype = DataType::kBF16;
  tiles.rows = Products::kRows;
  tiles.step_unit = Products::kWords;
  tiles.enter = &Products::Enter;
  tiles.leave = &Products::Leave;
  tiles.linear = &Products::Linear;
  tiles.scores = &Products::Scores;
  tiles.add_values = &Products::AddValues;
  return tiles;
}

}  // namespace kvblend::kernels
