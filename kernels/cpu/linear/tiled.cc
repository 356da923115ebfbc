#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/tile_input.h"
#include "kernels/cpu/machine/onednn.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

// Rows and their sums stay in the second-level cache beside a block of weights; enough of them that expanding
// a quantized block costs a few hundredths.
constexpr int64_t kRowsPerTask = 256;
// 16 KiB of a block stay in the first-level cache while all rows are multiplied by them.
constexpr int64_t kStepsPerPass = 64;
// Fewer tiles than this read a block at once, from front to back, as it comes from memory.
constexpr int64_t kMinTilesForPasses = 4;

/// Some rows times one block.
class TiledTask {
 public:
  TiledTask(const Tiles& tiles, const TileInput& input, bool fetched)
      : tiles_(tiles), input_(input), steps_(input.steps()), fetched_(fetched) {}

  /// sums [num_tiles * tiles.rows][kPackedBlock] = rows from `first_tile` on * block
  void Multiply(int64_t first_tile, int64_t num_tiles, const uint32_t* block, float* sums) const {
    const int64_t pass = num_tiles < kMinTilesForPasses ? steps_ : kStepsPerPass;
    for (int64_t step = 0; step < steps_; step += pass) {
      const int64_t count = std::min(pass, steps_ - step);
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        const int64_t row = (first_tile + tile) * tiles_.rows;
        tiles_.linear(input_.tile(row) + step, input_.stride(row), block + step * kPackedBlock, count,
                      /*accumulate=*/step > 0, /*prefetch=*/tile == 0 && !fetched_,
                      sums + tile * tiles_.rows * kPackedBlock, kPackedBlock);
      }
    }
  }

 private:
  const Tiles& tiles_;
  const TileInput& input_;
  const int64_t steps_;
  const bool fetched_;  // the block is in a cache
};

void WriteSums(const float* sums, int64_t rows, int64_t columns, bool accumulate, float* out,
               int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r, sums += kPackedBlock, out += out_stride) {
    if (accumulate) {
      simd::AddScaledRow(sums, 1.0f, out, columns);
    } else {
      std::memcpy(out, sums, columns * sizeof(float));
    }
  }
}

}  // namespace

absl::Status TiledLinear(CpuContext& context, const Tiles& tiles, ConstMatrixView x,
                         const CpuWeights& weights, bool accumulate, MatrixView out) {
  if (tiles.linear_pair != nullptr) return PairedLinear(context, tiles, x, weights, accumulate, out);
  TileInput input;
  absl::Status status = input.Prepare(context, tiles, x);
  if (!status.ok()) return status;
  const int64_t num_tiles = (x.rows + tiles.rows - 1) / tiles.rows;
  const bool quantized = weights.quantized() != nullptr;
  const TiledTask task(tiles, input, /*fetched=*/quantized);
  const int64_t block_words = tiles.Steps(PackedColumns(tiles.dtype, x.cols)) * kPackedBlock;
  const int64_t num_blocks = (weights.rows() + kPackedBlock - 1) / kPackedBlock;
  const int64_t row_tasks = RowTasks(context.pool, num_tiles * tiles.rows, kRowsPerTask);
  context.pool.ForGrid(row_tasks, num_blocks, [&](int64_t part, int64_t block) {
    const uint32_t* packed = weights.Block(
        block, quantized ? ThreadScratch<uint32_t>(ScratchSlot::kWeights, block_words) : nullptr);
    const int64_t first_tile = part * num_tiles / row_tasks,
                  count = (part + 1) * num_tiles / row_tasks - first_tile,
                  first_row = first_tile * tiles.rows;
    auto* sums = ThreadScratch<float>(ScratchSlot::kOutput, count * tiles.rows * kPackedBlock);
    const TileScope scope(tiles);
    task.Multiply(first_tile, count, packed, sums);
    WriteSums(sums, std::min(count * tiles.rows, x.rows - first_row),
              std::min(kPackedBlock, weights.rows() - block * kPackedBlock), accumulate,
              static_cast<float*>(out.data) + first_row * out.row_stride + block * kPackedBlock,
              out.row_stride);
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
