// Many rows: oneDNN's products, each of a block of rows. Quantized weights are expanded first, some outputs
// at a time: at a few hundred rows that costs a hundredth of the products. Threads share what is expanded and
// each has rows of its own; or, where there are too many of them for that, each expands and multiplies
// outputs of its own.
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

// Copies or adds a product's rows to where they belong.
void WriteRows(const float* from, bool accumulate, MatrixView to) {
  for (int64_t r = 0; r < to.rows; ++r, from += to.cols) {
    auto* target = static_cast<float*>(to.data) + r * to.row_stride;
    if (accumulate) {
      simd::AddScaledRow(from, 1.0f, target, to.cols);
    } else {
      std::memcpy(target, from, to.cols * sizeof(float));
    }
  }
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
    if (block.direct) {
      auto* target = static_cast<float*>(out.data) + block.first * out.row_stride + panel.first;
      error.Update(gemm.Run(input.row(block.first), panel.memory, target));
      return;
    }
    auto* result = ThreadScratch<float>(ScratchSlot::kOutput, block.padded * panel.count);
    error.Update(gemm.Run(input.row(block.first), panel.memory, result));
    WriteRows(result, accumulate, out.Rows(block.first, block.count).Columns(panel.first, panel.count));
  });
  return error.status();
}

// A quantized matrix in blocks of outputs, as they are expanded.
struct ExpandedBlocks {
  explicit ExpandedBlocks(const CpuWeights& weights)
      : count((weights.rows() + kPackedBlock - 1) / kPackedBlock),
        words(PackedColumns(weights.dtype(), weights.cols()) * SizeOf(weights.dtype()) /
              static_cast<int64_t>(sizeof(uint32_t)) * kPackedBlock) {}
  int64_t bytes() const { return words * static_cast<int64_t>(sizeof(uint32_t)); }

  const int64_t count;
  const int64_t words;  // of one
};

// Every thread multiplies all rows by some outputs at a time, which it expands into its own cache.
// blocks_at_once: of them
absl::Status MultiplyByOutputs(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                               int64_t blocks_at_once, bool accumulate, MatrixView out) {
  const ExpandedBlocks blocks(weights);
  const int64_t num_panels = (blocks.count + blocks_at_once - 1) / blocks_at_once,
                panel_outputs = blocks_at_once * kPackedBlock,
                last_outputs = weights.rows() - (num_panels - 1) * panel_outputs;
  const int64_t last_row = (x.rows - 1) / kRowBlock * kRowBlock, last_rows = RowClass(x.rows - last_row);
  std::shared_ptr<const Gemm> gemms[2][2];  // [is the last block of rows][is the last panel]
  for (const bool last_block : {false, true}) {
    for (const bool last_panel : {false, true}) {
      auto gemm = context.gemms.Get({.dtype = weights.dtype(),
                                     .m = last_block ? last_rows : kRowBlock,
                                     .n = last_panel ? last_outputs : panel_outputs,
                                     .k = x.cols});
      if (!gemm.ok()) return gemm.status();
      gemms[last_block][last_panel] = *std::move(gemm);
    }
  }
  DenseInput input;
  absl::Status status = input.Prepare(context, x, weights.dtype(), last_row, last_row + last_rows);
  if (!status.ok()) return status;

  FirstError error;
  const auto multiply = [&](int64_t panel) {
    const bool is_last = panel == num_panels - 1;
    const int64_t outputs = is_last ? last_outputs : panel_outputs, first_block = panel * blocks_at_once;
    auto* expanded = ThreadScratch<uint32_t>(ScratchSlot::kWeights, blocks_at_once * blocks.words);
    for (int64_t i = 0; i < std::min(blocks_at_once, blocks.count - first_block); ++i) {
      weights.Block(first_block + i, expanded + i * blocks.words);
    }
    const dnnl::memory memory(PackedGemmDesc(weights.dtype(), x.cols, outputs), OneDnnEngine(), expanded);
    auto* result = ThreadScratch<float>(ScratchSlot::kOutput, kRowBlock * outputs);
    for (int64_t row = 0; row < x.rows && error.ok(); row += kRowBlock) {
      error.Update(gemms[row == last_row][is_last]->Run(input.row(row), memory, result));
      WriteRows(result, accumulate,
                out.Columns(panel * panel_outputs, outputs).Rows(row, std::min(kRowBlock, x.rows - row)));
    }
  };
  context.pool.ForStreams(num_panels, [&](int64_t panel) {
    try {
      multiply(panel);
    } catch (const dnnl::error& e) {
      error.Update(absl::InternalError(absl::StrCat("Linear: oneDNN: ", e.what())));
    }
  });
  return error.status();
}

// Measured to gain from so many rows on; fewer were not measured.
constexpr int64_t kMinRowsByOutputs = 4 * kRowBlock;
// Half of what the second-level caches of processors with AMX hold; beside it a block of rows has room.
constexpr int64_t kMaxPanelBytes = int64_t{512} << 10;

// How many blocks each thread should expand for itself at a time; 0: threads should share them. Sharing is
// better where every thread can have rows of its own (ChooseSplit), as results are then written in place, and
// where there are not enough outputs for all.
int64_t BlocksOfThread(const CpuContext& context, int64_t rows, const ExpandedBlocks& blocks) {
  const int threads = context.pool.num_threads();
  if (rows < kMinRowsByOutputs || blocks.count < 2 * threads) return 0;
  if (!ChooseSplit(rows, threads, /*num_panels=*/2).panels) return 0;
  return std::clamp<int64_t>(kMaxPanelBytes / blocks.bytes(), 1, blocks.count / (2 * threads));
}

absl::Status MultiplyQuantized(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                               bool accumulate, MatrixView out) {
  const ExpandedBlocks blocks(weights);
  if (const int64_t own = BlocksOfThread(context, x.rows, blocks); own > 0) {
    return MultiplyByOutputs(context, x, weights, own, accumulate, out);
  }
  const int64_t blocks_at_once = std::max<int64_t>(1, kMaxExpandedBytes / blocks.bytes());
  ScratchPool::Lease lease = context.scratch.Borrow(std::min(blocks_at_once, blocks.count) * blocks.bytes());
  if (!lease) return NoMemoryForLinear("expanded weights");
  for (int64_t block = 0; block < blocks.count; block += blocks_at_once) {
    const int64_t first = block * kPackedBlock,
                  outputs = std::min(blocks_at_once * kPackedBlock, weights.rows() - first);
    const WeightPanels panels = WeightPanels::Over(weights.dtype(), outputs, x.cols, lease.data());
    context.pool.ParallelFor((outputs + kPackedBlock - 1) / kPackedBlock, [&](int64_t i) {
      weights.Block(block + i, reinterpret_cast<uint32_t*>(lease.data()) + i * blocks.words);
    });
    absl::Status status =
        MultiplyPanels(context, x, weights.dtype(), panels, accumulate, out.Columns(first, outputs));
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
