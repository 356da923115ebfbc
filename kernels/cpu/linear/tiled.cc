#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/linear.h"
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
  TiledTask(const Tiles& tiles, const uint32_t* input, int64_t steps, bool fetched)
      : tiles_(tiles), input_(input), steps_(steps), fetched_(fetched) {}

  /// sums [num_tiles * tiles.rows][kPackedBlock] = rows from `first_tile` on * block
  void Multiply(int64_t first_tile, int64_t num_tiles, const uint32_t* block, float* sums) const {
    const int64_t pass = num_tiles < kMinTilesForPasses ? steps_ : kStepsPerPass;
    for (int64_t step = 0; step < steps_; step += pass) {
      const int64_t count = std::min(pass, steps_ - step);
      for (int64_t tile = 0; tile < num_tiles; ++tile) {
        const uint32_t* rows = input_ + (first_tile + tile) * tiles_.rows * steps_ + step;
        tiles_.linear(rows, steps_, block + step * kPackedBlock, count, /*accumulate=*/step > 0,
                      /*prefetch=*/tile == 0 && !fetched_, sums + tile * tiles_.rows * kPackedBlock,
                      kPackedBlock);
      }
    }
  }

 private:
  const Tiles& tiles_;
  const uint32_t* const input_;  // [padded rows][steps]
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
  const int64_t num_tiles = (x.rows + tiles.rows - 1) / tiles.rows, steps = tiles.Steps(x.cols);
  const int64_t words = num_tiles * tiles.rows * steps;
  ScratchPool::Lease lease = context.scratch.Borrow(words * sizeof(uint32_t));
  if (!lease) return NoMemoryForLinear("its input");
  auto* input = reinterpret_cast<uint32_t*>(lease.data());
  ForRows(context.pool, num_tiles * tiles.rows, 2 * steps * static_cast<int64_t>(sizeof(uint32_t)),
          [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
              uint32_t* row = input + r * steps;
              const int64_t filled = r < x.rows ? tiles.Words(x.cols) : 0;
              std::fill(row + std::max<int64_t>(filled - 1, 0), row + steps, 0u);  // of the last word half
              if (r < x.rows) simd::ConvertRow(x.Rows(r, 1).data, x.dtype, row, tiles.dtype, x.cols);
            }
          });
  const bool quantized = weights.quantized() != nullptr;
  const TiledTask task(tiles, input, steps, /*fetched=*/quantized);
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
