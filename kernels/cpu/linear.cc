#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"

namespace kvblend::kernels {
namespace {

// Rows of one product. From 32 rows on oneDNN runs at full speed; 64 rows of a few hundred bf16 columns and
// their results fit beside a weight panel in the second-level cache.
constexpr int64_t kRowBlock = 64;

// The numbers of rows for which products are prepared; other counts are padded to the next of them.
constexpr int64_t kRowClasses[] = {8, 16, 24, 32, 48, kRowBlock};

int64_t RowClass(int64_t rows) {
  return *std::lower_bound(std::begin(kRowClasses), std::end(kRowClasses), rows);
}

absl::Status NoMemory(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("Linear: no memory for ", what));
}

absl::Status MatVec(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                    MatrixView out) {
  const int64_t k = PackedColumns(weights.dtype(), weights.cols());
  ScratchPool::Lease lease = context.scratch.Borrow(x.rows * k * sizeof(float));
  if (!lease) return NoMemory("its input");
  auto* input = reinterpret_cast<float*>(lease.data());
  for (int64_t r = 0; r < x.rows; ++r) {
    simd::ConvertRow(x.Rows(r, 1).data, x.dtype, input + r * k, DataType::kF32, x.cols);
    std::fill(input + r * k + x.cols, input + (r + 1) * k, 0.0f);
  }
  const auto& panels = weights.panels();
  context.pool.ParallelFor(static_cast<int64_t>(panels.size()), [&](int64_t i) {
    const CpuWeights::Panel& panel = panels[i];
    simd::PackedMatVec(panel.memory.get_data_handle(), weights.dtype(), k, panel.count, input, x.rows,
                       accumulate, static_cast<float*>(out.data) + panel.first, out.row_stride);
  });
  return absl::OkStatus();
}

// Up to this many rows the tiles of tiles.h are faster than oneDNN, which pads rows and columns more. Without
// AVX-512 they take all, because oneDNN would want the weights in another layout.
constexpr int64_t kMaxTiledRows = 64;

// Block by block, so that each is read from memory once.
absl::Status TiledLinear(CpuContext& context, const Tiles& tiles, ConstMatrixView x,
                         const CpuWeights& weights, bool accumulate, MatrixView out) {
  const int64_t num_tiles = (x.rows + tiles.rows - 1) / tiles.rows, steps = tiles.Steps(x.cols);
  const int64_t words = num_tiles * tiles.rows * steps;
  ScratchPool::Lease lease = context.scratch.Borrow(words * sizeof(uint32_t));
  if (!lease) return NoMemory("its input");
  auto* input = reinterpret_cast<uint32_t*>(lease.data());
  ForRows(context.pool, num_tiles * tiles.rows, 2 * steps * static_cast<int64_t>(sizeof(uint32_t)),
          [&](int64_t begin, int64_t end) {
            for (int64_t r = begin; r < end; ++r) {
              uint32_t* row = input + r * steps;
              row[steps - 1] = 0;
              if (r < x.rows) {
                simd::ConvertRow(x.Rows(r, 1).data, x.dtype, row, tiles.dtype, x.cols);
              } else {
                std::fill(row, row + steps, 0u);
              }
            }
          });
  const auto* packed = static_cast<const uint32_t*>(weights.all().memory.get_data_handle());
  const int64_t block_words = tiles.Steps(PackedColumns(tiles.dtype, x.cols)) * kPackedBlock;
  const int64_t num_blocks = (weights.rows() + kPackedBlock - 1) / kPackedBlock;
  context.pool.ParallelFor(num_blocks, [&](int64_t block) {
    const int64_t columns = std::min(kPackedBlock, weights.rows() - block * kPackedBlock);
    float edge[kMaxTileRows * kPackedBlock];
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      const int64_t first = tile * tiles.rows, rows = std::min(tiles.rows, x.rows - first);
      const bool whole = rows == tiles.rows && columns == kPackedBlock;
      float* target = static_cast<float*>(out.data) + first * out.row_stride + block * kPackedBlock;
      tiles.linear(input + first * steps, packed + block * block_words, steps, accumulate && whole,
                   /*prefetch=*/tile == 0, whole ? target : edge, whole ? out.row_stride : kPackedBlock);
      if (whole) continue;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          float& value = target[r * out.row_stride + c];
          value = edge[r * kPackedBlock + c] + (accumulate ? value : 0.0f);
        }
      }
    }
  });
  return absl::OkStatus();
}

// Rows of x and out that one product takes, and how it is computed.
struct RowBlock {
  int64_t first, count;
  int64_t padded;       // rows of the product
  const Gemm* gemm[2];  // [is the last panel]
  bool direct;          // the product writes to out itself
};

// The input as oneDNN wants it: dense, in the GEMM's dtype, padded with zero rows.
class DenseInput {
 public:
  // `padded_rows` >= x.rows. Rows that already fit are used where they are.
  absl::Status Prepare(CpuContext& context, ConstMatrixView x, DataType dtype, int64_t last_block,
                       int64_t padded_rows) {
    x_ = x;
    row_bytes_ = x.cols * SizeOf(dtype);
    const bool fits = x.dtype == dtype && (x.row_stride == x.cols || x.rows == 1);
    first_copied_ = !fits ? 0 : padded_rows != x.rows ? last_block : padded_rows;
    lease_ = context.scratch.Borrow((padded_rows - first_copied_) * row_bytes_);
    if (!lease_) return NoMemory("its input");
    ForRows(context.pool, padded_rows - first_copied_, 2 * row_bytes_, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::byte* target = lease_.data() + r * row_bytes_;
        if (first_copied_ + r < x.rows) {
          simd::ConvertRow(x.Rows(first_copied_ + r, 1).data, x.dtype, target, dtype, x.cols);
        } else {
          std::memset(target, 0, row_bytes_);
        }
      }
    });
    return absl::OkStatus();
  }

  const void* row(int64_t index) const {
    return index < first_copied_ ? x_.Rows(index, 1).data
                                 : lease_.data() + (index - first_copied_) * row_bytes_;
  }

 private:
  ConstMatrixView x_;
  int64_t row_bytes_ = 0, first_copied_ = 0;
  ScratchPool::Lease lease_;
};

// Rows per product, and whether each takes all output features or one panel of them. Whole rows need no copy
// of the result, panels make more tasks: every thread should get several.
struct Split {
  int64_t rows;
  bool panels;
};

Split ChooseSplit(int64_t rows, int num_threads, size_t num_panels) {
  for (const int64_t block : {kRowBlock, kRowBlock / 2}) {
    if ((rows + block - 1) / block >= 4 * num_threads) return {block, false};
  }
  return {num_panels > 1 ? kRowBlock : kRowClasses[0], num_panels > 1};
}

}  // namespace

absl::Status CpuLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                       MatrixView out) {
  if (x.rows == 0) return absl::OkStatus();
  if (x.rows <= simd::kMaxMatVecRows) return MatVec(context, x, weights, accumulate, out);
  const Tiles& tiles = simd::GetTiles(weights.dtype());
  if (tiles.dtype == weights.dtype() && (x.rows <= kMaxTiledRows || !OneDnnReadsBlocks())) {
    return TiledLinear(context, tiles, x, weights, accumulate, out);
  }
  const Split split = ChooseSplit(x.rows, context.pool.num_threads(), weights.panels().size());
  const absl::Span<const CpuWeights::Panel> panels =
      split.panels ? absl::MakeConstSpan(weights.panels()) : absl::MakeConstSpan(&weights.all(), 1);

  std::vector<RowBlock> blocks;
  std::vector<std::shared_ptr<const Gemm>> gemms;  // keeps them alive
  for (int64_t first = 0; first < x.rows; first += split.rows) {
    RowBlock block{.first = first,
                   .count = std::min(split.rows, x.rows - first),
                   .padded = 0,
                   .gemm = {},
                   .direct = false};
    block.padded = RowClass(block.count);
    block.direct = !split.panels && block.padded == block.count && out.row_stride == out.cols;
    if (!blocks.empty() && blocks.back().padded == block.padded && blocks.back().direct == block.direct) {
      std::copy_n(blocks.back().gemm, 2, block.gemm);
    } else {
      for (const bool last_panel : {false, true}) {
        auto gemm = context.gemms.Get({.dtype = weights.dtype(),
                                       .accumulate = accumulate && block.direct,
                                       .m = block.padded,
                                       .n = (last_panel ? panels.back() : panels.front()).count,
                                       .k = x.cols});
        if (!gemm.ok()) return gemm.status();
        block.gemm[last_panel] = gemm->get();
        gemms.push_back(*std::move(gemm));
      }
    }
    blocks.push_back(block);
  }
  DenseInput input;
  const RowBlock& last = blocks.back();
  absl::Status status = input.Prepare(context, x, weights.dtype(), last.first, last.first + last.padded);
  if (!status.ok()) return status;

  // Panel by panel, so that the threads share a panel while it is in their caches.
  FirstError error;
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  context.pool.ParallelFor(num_blocks * static_cast<int64_t>(panels.size()), [&](int64_t i) {
    if (!error.ok()) return;
    const CpuWeights::Panel& panel = panels[i / num_blocks];
    const RowBlock& block = blocks[i % num_blocks];
    const Gemm& gemm = *block.gemm[&panel == &panels.back()];
    auto* target = static_cast<float*>(out.data) + block.first * out.row_stride + panel.first;
    if (block.direct) {
      error.Update(gemm.Run(input.row(block.first), panel.memory, target));
      return;
    }
    auto* result = ThreadScratch<float>(ScratchSlot::kOutput, block.padded * panel.count);
    error.Update(gemm.Run(input.row(block.first), panel.memory, result));
    for (int64_t r = 0; r < block.count; ++r) {
      const float* from = result + r * panel.count;
      float* to = target + r * out.row_stride;
      if (accumulate) {
        simd::AddScaledRow(from, 1.0f, to, panel.count);
      } else {
        std::memcpy(to, from, panel.count * sizeof(float));
      }
    }
  });
  return error.status();
}

}  // namespace kvblend::kernels
