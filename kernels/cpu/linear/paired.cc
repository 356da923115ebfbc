// Products of AMX's size: 32 rows by two columns of 16 outputs at a time. The columns of a task, expanded
// where they are quantized, stay in the first-level cache while all of its rows pass by, which come from the
// second level. Each sum goes once into its place: sums that went back and forth in parts would cost as much
// as the products.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/tile_input.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kPairOutputs = 2 * kColumnOutputs;

// Rows of a task stay in the second-level cache, which has 2 MiB on processors with AMX; the more they are,
// the less often columns are expanded.
constexpr int64_t kMaxRowBytes = int64_t{800} << 10;
constexpr int64_t kMinRows = 256, kMaxRows = 1024;

/// Calls body(first row, number of rows, pair) in parallel, for parts of the rows and every pair of columns.
template <class Body>
void ForPairs(CpuContext& context, const Tiles& tiles, const TileInput& input, int64_t rows,
              int64_t num_pairs, const Body& body) {
  const int64_t row_bytes = input.steps() * static_cast<int64_t>(sizeof(uint32_t)),
                num_tiles = (rows + tiles.rows - 1) / tiles.rows,
                most = std::clamp(kMaxRowBytes / row_bytes / tiles.rows * tiles.rows, kMinRows, kMaxRows),
                parts = RowTasks(context.pool, num_tiles * tiles.rows, most);
  // Part by part, so that its rows are in the cache for all pairs.
  context.pool.ForStreams(parts * num_pairs, [&](int64_t i) {
    const int64_t part = i / num_pairs, first = part * num_tiles / parts * tiles.rows,
                  end = std::min((part + 1) * num_tiles / parts * tiles.rows, rows);
    body(first, end - first, i % num_pairs);
  });
}

/// Where the words of two columns are, and how far from step to step.
class ColumnPair {
 public:
  ColumnPair(const CpuWeights& weights, int64_t steps, int64_t left, int64_t right) {
    uint32_t *of_left = nullptr, *of_right = nullptr;
    if (weights.quantized() != nullptr) {
      of_left = ThreadScratch<uint32_t>(ScratchSlot::kWeights, 2 * steps * kColumnOutputs);
      of_right = of_left + steps * kColumnOutputs;
    }
    left_ = weights.Column(left, of_left, &stride_);
    right_ = weights.Column(right, of_right, &stride_);
  }
  const uint32_t* left() const { return left_; }
  const uint32_t* right() const { return right_; }
  int64_t stride() const { return stride_; }

 private:
  const uint32_t *left_, *right_;
  int64_t stride_ = 0;
};

/// What the products of the tile at `row` fetch, of a task's rows up to `end`. is_first: no pair has read
/// these rows yet. column: the first that is written of `out`
NextTile Next(const Tiles& tiles, const TileInput& input, int64_t row, int64_t end, bool is_first,
              const MatrixView& out, int64_t column) {
  const int64_t next = row + tiles.rows;
  if (next + tiles.rows > end) return {};
  return {.rows = is_first ? input.tile(next) : nullptr,
          .out = out.Rows(next, 1).Columns(column, 1).data,
          .out_stride = out.row_stride * SizeOf(out.dtype)};
}

/// Between a part of a matrix and sums of a pair, whose rows have kPairOutputs.
void CopyRows(const MatrixView& from, float* sums) {
  for (int64_t r = 0; r < from.rows; ++r) {
    std::memcpy(sums + r * kPairOutputs, from.Rows(r, 1).data, from.cols * sizeof(float));
  }
}
void CopyRows(const float* sums, const MatrixView& to) {
  for (int64_t r = 0; r < to.rows; ++r) {
    std::memcpy(to.Rows(r, 1).data, sums + r * kPairOutputs, to.cols * sizeof(float));
  }
}

}  // namespace

absl::Status PairedLinear(CpuContext& context, const Tiles& tiles, ConstMatrixView x,
                          const CpuWeights& weights, bool accumulate, MatrixView out) {
  TileInput input;
  absl::Status status = input.Prepare(context, tiles, x);
  if (!status.ok()) return status;
  const int64_t num_pairs = (weights.rows() + kPairOutputs - 1) / kPairOutputs;
  ForPairs(context, tiles, input, x.rows, num_pairs, [&](int64_t first, int64_t count, int64_t pair) {
    const ColumnPair columns(weights, input.steps(), 2 * pair, 2 * pair + 1);
    const int64_t column = pair * kPairOutputs, outputs = std::min(kPairOutputs, weights.rows() - column);
    auto* sums = ThreadScratch<float>(ScratchSlot::kOutput, tiles.rows * kPairOutputs);
    const TileScope scope(tiles);
    for (int64_t row = first; row < first + count; row += tiles.rows) {
      const MatrixView target =
          out.Rows(row, std::min(tiles.rows, first + count - row)).Columns(column, outputs);
      // What is no whole tile is multiplied beside its place, in the same order, so that a row's result does
      // not depend on how many there are.
      const bool whole = target.rows == tiles.rows && target.cols == kPairOutputs;
      if (!whole && accumulate) CopyRows(target, sums);
      tiles.linear_pair(input.tile(row), input.stride(row), columns.left(), columns.right(), columns.stride(),
                        input.steps(), accumulate, whole ? static_cast<float*>(target.data) : sums,
                        whole ? target.row_stride : kPairOutputs,
                        Next(tiles, input, row, first + count, pair == 0, out, column));
      if (!whole) CopyRows(sums, target);
    }
  });
  return absl::OkStatus();
}

bool TakesGatedPairs(const CpuContext& context, int64_t num_rows, const CpuWeights& weights) {
  return weights.rows() % kPairOutputs == 0 && context.TilesFor(weights.dtype()).linear_pair != nullptr &&
         WayOfLinear(context, num_rows, weights) == LinearWay::kTiles;
}

absl::Status PairedGatedLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                               Activation activation, MatrixView out) {
  const Tiles& tiles = context.TilesFor(weights.dtype());
  TileInput input;
  absl::Status status = input.Prepare(context, tiles, x);
  if (!status.ok()) return status;
  const int64_t num_columns = out.cols / kColumnOutputs;
  ForPairs(context, tiles, input, x.rows, num_columns, [&](int64_t first, int64_t count, int64_t column) {
    const ColumnPair columns(weights, input.steps(), column, num_columns + column);
    // Results of one tile are made while the products of the next are still under way.
    const int64_t tile_words = tiles.rows * kPairOutputs, end = first + count;
    auto* first_sums = ThreadScratch<float>(ScratchSlot::kOutput, 2 * tile_words);
    float* sums = first_sums;
    const auto activate = [&](int64_t row, const float* of_tile) {
      simd::GatedActivationRows(
          activation, of_tile, of_tile + kColumnOutputs, kPairOutputs,
          out.Rows(row, std::min(tiles.rows, end - row)).Columns(column * kColumnOutputs, kColumnOutputs));
    };
    const TileScope scope(tiles);
    int64_t row = first;
    for (; row < end; row += tiles.rows) {
      tiles.linear_pair(input.tile(row), input.stride(row), columns.left(), columns.right(), columns.stride(),
                        input.steps(), /*accumulate=*/false, sums, kPairOutputs,
                        Next(tiles, input, row, end, column == 0, out, column * kColumnOutputs));
      float* before = sums == first_sums ? sums + tile_words : first_sums;
      if (row > first) activate(row - tiles.rows, before);
      sums = before;
    }
    activate(row - tiles.rows, sums == first_sums ? sums + tile_words : first_sums);
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
