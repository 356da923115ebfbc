// The products of kernels/cpu/machine/tiles.h by AMX, over the instructions of instructions.h or others that
// do the same: tests have some for processors without AMX.
#pragma once

#include <algorithm>
#include <cstddef>
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

  static void LinearPair(const uint32_t* rows, int64_t row_stride, const uint32_t* left,
                         const uint32_t* right, int64_t column_stride, int64_t steps, bool accumulate,
                         float* out, int64_t out_stride, const NextTile& next) {
    if (accumulate) {
      Pair::Load(out, out_stride);
    } else {
      Pair::Zero();
    }
    Pair::template AddProducts</*kRowsOnce=*/true>(rows, row_stride, left, right, column_stride, steps, next);
    Pair::Store(out, out_stride);
  }

  static void Scores(const uint32_t* queries, const uint32_t* const* panels, int64_t steps, int64_t keys,
                     float* scores) {
    if (steps == 2 * kWords) return ScoresOfTwoSteps(queries, panels, keys, scores);
    for (int64_t key = 0; key < keys; key += 2 * kWords) {
      Pair::Zero();
      const uint32_t* columns = panels[key / kPanelKeys] + key % kPanelKeys;
      Pair::AddProducts(queries, steps, columns, columns + kWords, kPanelKeys, steps);
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

  /// Of heads of 64 channels: all queries stay in tiles.
  static void ScoresOfTwoSteps(const uint32_t* queries, const uint32_t* const* panels, int64_t keys,
                               float* scores) {
    constexpr int64_t kSteps = 2 * kWords;
    Amx::template Load<kTop>(queries, Bytes(kSteps));
    Amx::template Load<kLeft>(queries + kWords, Bytes(kSteps));
    Amx::template Load<kBottom>(queries + AmxConfig::kMaxRows * kSteps, Bytes(kSteps));
    Amx::template Load<kRight>(queries + AmxConfig::kMaxRows * kSteps + kWords, Bytes(kSteps));
    for (int64_t key = 0; key < keys; key += kWords) {
      const uint32_t* columns = panels[key / kPanelKeys] + key % kPanelKeys;
      Amx::template Zero<kTopLeft>();
      Amx::template Zero<kBottomLeft>();
      Amx::template Load<kTopRight>(columns, Bytes(kPanelKeys));
      Amx::template AddProducts<kTopLeft, kTop, kTopRight>();
      Amx::template AddProducts<kBottomLeft, kBottom, kTopRight>();
      Amx::template Load<kBottomRight>(columns + kWords * kPanelKeys, Bytes(kPanelKeys));
      Amx::template AddProducts<kTopLeft, kLeft, kBottomRight>();
      Amx::template AddProducts<kBottomLeft, kRight, kBottomRight>();
      Amx::template Store<kTopLeft>(scores + key, Bytes(kKeyBlock));
      Amx::template Store<kBottomLeft>(scores + AmxConfig::kMaxRows * kKeyBlock + key, Bytes(kKeyBlock));
    }
  }

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

    /// += rows * columns. rows: [kRows][row_stride]; left, right: [steps][column_stride]. kRowsOnce: rows
    /// pass by once, while columns are read again for the next ones.
    template <bool kRowsOnce = false>
    static void AddProducts(const uint32_t* rows, int64_t row_stride, const uint32_t* left,
                            const uint32_t* right, int64_t column_stride, int64_t steps,
                            const NextTile& next = {}) {
      for (int64_t step = 0; step < steps; step += kWords) {
        Fetch(next, step);
        Amx::template Load<kLeft>(left, Bytes(column_stride));
        left += kWords * column_stride;
        LoadRows<kTop, kRowsOnce>(rows + step, row_stride);
        Amx::template AddProducts<kTopLeft, kTop, kLeft>();
        LoadRows<kBottom, kRowsOnce>(rows + AmxConfig::kMaxRows * row_stride + step, row_stride);
        Amx::template AddProducts<kBottomLeft, kBottom, kLeft>();
        if constexpr (!kOneColumn) {
          Amx::template Load<kRight>(right, Bytes(column_stride));
          right += kWords * column_stride;
          Amx::template AddProducts<kTopRight, kTop, kRight>();
          Amx::template AddProducts<kBottomRight, kBottom, kRight>();
        }
      }
    }
  };
  template <int kTile, bool kOnce>
  static void LoadRows(const uint32_t* rows, int64_t stride) {
    if constexpr (kOnce) {
      Amx::template LoadOnce<kTile>(rows, Bytes(stride));
    } else {
      Amx::template Load<kTile>(rows, Bytes(stride));
    }
  }

  /// Step by step, as more at once would wait for each other, and loads behind them.
  static void Fetch(const NextTile& next, int64_t step) {
    constexpr int64_t kRowsPerStep = 2, kLine = 64, kLineWords = kLine / sizeof(uint32_t);
    if (next.rows != nullptr) {
      // From front to back, as they lie: so the processor's own prefetcher runs ahead.
      const uint32_t* part = next.rows + step / kWords * kRows * kLineWords;
      for (int64_t line = 0; line < kRows; ++line) __builtin_prefetch(part + line * kLineWords);
    }
    const int64_t row = step / kWords * kRowsPerStep;
    if (next.out == nullptr || row >= kRows) return;
    for (int64_t r = row; r < row + kRowsPerStep; ++r) {
      const auto* line = static_cast<const std::byte*>(next.out) + r * next.out_stride;
      __builtin_prefetch(line, /*rw=*/1);
      __builtin_prefetch(line + kLine, /*rw=*/1);
    }
  }

  using Pair = Sums</*kOneColumn=*/false>;
  using Single = Sums</*kOneColumn=*/true>;

  template <class Columns>
  static void AddValueColumns(const uint32_t* probabilities, const uint32_t* const* panels, int64_t steps,
                              int64_t column, int64_t columns, float* out) {
    constexpr int64_t kPanelSteps = kPanelKeys / 2;
    Columns::Load(out, columns);
    for (int64_t step = 0; step < steps; step += kPanelSteps) {
      const uint32_t* values = *panels++ + column;
      Columns::AddProducts(probabilities + step, kKeyBlock / 2, values, values + kWords, columns,
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
  tiles.linear = nullptr;
  tiles.linear_pair = &Products::LinearPair;
  tiles.scores = &Products::Scores;
  tiles.add_values = &Products::AddValues;
  return tiles;
}

}  // namespace kvblend::kernels
