// Many rows: oneDNN's products, each of a block of rows. Quantized weights are expanded first, some outputs
// at a time: at a few hundred rows that costs a hundredth of the products.
#include "kernels/cpu/machine/onednn.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"

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

// Expanded weights at a time: larger than a layer's of a small model, and still in the last-level cache.
constexpr int64_t kMaxExpandedBytes = int64_t{16} << 20;

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
    if (!lease_) return NoMemoryForLinear("its input");
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

absl::Status MultiplyPanels(CpuContext& context, ConstMatrixView x, DataType dtype,
                            const WeightPanels& weights, bool accumulate, MatrixView out) {
  const Split split = ChooseSplit(x.rows, context.pool.num_threads(), weights.panels.size());
  const absl::Span<const WeightPanel> panels =
      split.panels ? absl::MakeConstSpan(weights.panels) : absl::MakeConstSpan(&weights.all, 1);

  ListMemory lists(context.scratch);
  std::pmr::vector<RowBlock> blocks(lists.resource());
  std::pmr::vector<std::shared_ptr<const Gemm>> gemms(lists.resource());  // keeps them alive
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
        auto gemm = context.gemms.Get({.dtype = dtype,
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
  absl::Status status = input.Prepare(context, x, dtype, last.first, last.first + last.padded);
  if (!status.ok()) return status;

  // Panel by panel, so that the threads share a panel while it is in their caches.
  FirstError error;
  const auto num_blocks = static_cast<int64_t>(blocks.size()),
             num_panels = static_cast<int64_t>(panels.size());
  context.pool.ForGrid(num_blocks, num_panels, [&](int64_t row_block, int64_t index) {
    if (!error.ok()) return;
    const WeightPanel& panel = panels[index];
    const RowBlock& block = blocks[row_block];
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

absl::Status MultiplyQuantized(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                               bool accumulate, MatrixView out) {
  const DataType dtype = weights.dtype();
  const int64_t block_words =
      PackedColumns(dtype, x.cols) * SizeOf(dtype) / static_cast<int64_t>(sizeof(uint32_t)) * kPackedBlock;
  const int64_t blocks_at_once =
      std::max<int64_t>(1, kMaxExpandedBytes / (block_words * static_cast<int64_t>(sizeof(uint32_t))));
  const int64_t num_blocks = (weights.rows() + kPackedBlock - 1) / kPackedBlock;
  ScratchPool::Lease lease =
      context.scratch.Borrow(std::min(blocks_at_once, num_blocks) * block_words * sizeof(uint32_t));
  if (!lease) return NoMemoryForLinear("expanded weights");
  for (int64_t block = 0; block < num_blocks; block += blocks_at_once) {
    const int64_t first = block * kPackedBlock,
                  outputs = std::min(blocks_at_once * kPackedBlock, weights.rows() - first);
    const WeightPanels panels = WeightPanels::Over(dtype, outputs, x.cols, lease.data());
    context.pool.ParallelFor((outputs + kPackedBlock - 1) / kPackedBlock, [&](int64_t i) {
      weights.Block(block + i, reinterpret_cast<uint32_t*>(lease.data()) + i * block_words);
    });
    absl::Status status = MultiplyPanels(context, x, dtype, panels, accumulate, out.Columns(first, outputs));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status OneDnnLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                          MatrixView out) {
  if (weights.quantized() == nullptr) {
    return MultiplyPanels(context, x, weights.dtype(), weights.panels(), accumulate, out);
  }
  try {
    return MultiplyQuantized(context, x, weights, accumulate, out);
  } catch (const dnnl::error& error) {
    return absl::InternalError(absl::StrCat("Linear: oneDNN: ", error.what()));
  }
}

}  // namespace kvblend::kernels
