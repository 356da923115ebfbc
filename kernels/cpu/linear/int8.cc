// More than a few rows in 8 bits (code_products.h). The weights' codes are brought into the products' order
// for every call, a block of outputs at a time, so that weights lie in memory once.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

// Rows and their sums stay in the second-level cache beside a block's codes; enough of them that preparing
// the block costs a few hundredths.
constexpr int64_t kRowsPerTask = 252;
// 16 KiB of codes stay in the first-level cache while all rows are multiplied by them.
constexpr int64_t kInputsPerPass = 256;

// x as codes, in rows padded to whole tiles.
struct Activations {
  ScratchPool::Lease lease;
  RowCodes rows;
};

absl::StatusOr<Activations> Quantize(CpuContext& context, ConstMatrixView x, int64_t group) {
  const int64_t padded = RoundUp(x.rows, kCodeRows);
  Activations result;
  result.rows.cols = RoundUp(x.cols, kChunkInputs);
  result.rows.group = group;
  const int64_t codes_bytes = padded * result.rows.cols, scales = padded * result.rows.groups();
  const int64_t bytes = codes_bytes + 2 * scales * static_cast<int64_t>(sizeof(float));
  result.lease = context.scratch.Borrow(bytes);
  if (!result.lease) return NoMemoryForLinear("its input in 8 bits");
  result.rows.codes = reinterpret_cast<int8_t*>(result.lease.data());
  result.rows.steps = reinterpret_cast<float*>(result.lease.data() + codes_bytes);
  result.rows.sums = result.rows.steps + scales;
  ForRows(context.pool, padded, 4 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const RowCodes row = result.rows.Row(r);
      if (r < x.rows) {
        simd::QuantizeActivations(x.Rows(r, 1).data, x.dtype, x.cols, row);
      } else {
        std::memset(row.codes, 0, row.cols);
        std::fill_n(row.steps, row.groups(), 0.0f);
        std::fill_n(row.sums, row.groups(), 0.0f);
      }
    }
  });
  return result;
}

// The codes of one block, in the thread's own memory.
BlockCodes PrepareBlock(const CpuWeights& weights, int64_t block, int64_t cols, int64_t group) {
  const int64_t code_words = cols / kCodesPerWord * kPackedBlock, scales = cols / group * kPackedBlock;
  auto* memory = ThreadScratch<uint32_t>(ScratchSlot::kCodes, code_words + 2 * scales);
  BlockCodes codes{memory, reinterpret_cast<float*>(memory + code_words), nullptr};
  codes.minimums = codes.steps + scales;
  if (weights.quantized() == nullptr) {
    const int64_t steps = PackedColumns(weights.dtype(), weights.cols()) * SizeOf(weights.dtype()) /
                          static_cast<int64_t>(sizeof(uint32_t));
    simd::QuantizeWeightBlock(weights.Block(block, nullptr), weights.dtype(), steps, cols, group, codes);
    return codes;
  }
  constexpr int64_t kColumns = kPackedBlock / kColumnOutputs;
  const QuantizedMatrix& matrix = *weights.quantized();
  const int64_t columns = std::min(kColumns, matrix.num_columns() - block * kColumns);
  if (columns < kColumns) std::memset(memory, 0, (code_words + 2 * scales) * sizeof(uint32_t));
  for (int64_t c = 0; c < columns; ++c) {
    simd::ExpandCodes(matrix.column(block * kColumns + c), group, codes.Output(c * kColumnOutputs));
  }
  return codes;
}

// The columns of a block in an operation's output. Products write whole tiles of whole blocks there, others
// by way of a tile of their own.
class BlockOutput {
 public:
  BlockOutput(MatrixView out, int64_t block, bool accumulate)
      : out_(out.Columns(block * kPackedBlock, std::min(kPackedBlock, out.cols - block * kPackedBlock))),
        accumulate_(accumulate) {}

  /// Rows [row, row + kCodeRows) times some groups of the block; the first group's come first.
  void Add(const RowCodes& rows, int64_t row, const BlockCodes& block, int64_t first_group,
           int64_t num_groups) const {
    const bool accumulate = accumulate_ || first_group > 0;
    const MatrixView target = out_.Rows(row, std::min(kCodeRows, out_.rows - row));
    auto* values = static_cast<float*>(target.data);
    if (target.rows == kCodeRows && target.cols == kPackedBlock) {
      simd::MultiplyCodes(rows.Row(row), block, first_group, num_groups, accumulate, values,
                          target.row_stride);
      return;
    }
    // The same sums in the same order, so that a row's result does not depend on the tile that it is in.
    float tile[kCodeRows * kPackedBlock] = {};
    const auto copy = [&](bool to_tile) {
      for (int64_t r = 0; r < target.rows; ++r) {
        float *in_tile = tile + r * kPackedBlock, *in_out = values + r * target.row_stride;
        std::copy_n(to_tile ? in_out : in_tile, target.cols, to_tile ? in_tile : in_out);
      }
    };
    if (accumulate) copy(/*to_tile=*/true);
    simd::MultiplyCodes(rows.Row(row), block, first_group, num_groups, accumulate, tile, kPackedBlock);
    copy(/*to_tile=*/false);
  }

 private:
  const MatrixView out_;
  const bool accumulate_;
};

}  // namespace

absl::Status Int8Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                        MatrixView out) {
  const int64_t group = weights.quantized() != nullptr ? weights.quantized()->smallest_group() : kChunkInputs;
  absl::StatusOr<Activations> activations = Quantize(context, x, group);
  if (!activations.ok()) return activations.status();
  const RowCodes& rows = activations->rows;
  const int64_t num_tiles = (x.rows + kCodeRows - 1) / kCodeRows;
  const int64_t row_tasks = (x.rows + kRowsPerTask - 1) / kRowsPerTask;
  const int64_t num_blocks = (weights.rows() + kPackedBlock - 1) / kPackedBlock;
  const int64_t groups_per_pass = kInputsPerPass / group;
  context.pool.ParallelFor(num_blocks * row_tasks, [&](int64_t i) {
    const int64_t block = i / row_tasks, part = i % row_tasks;
    const BlockCodes codes = PrepareBlock(weights, block, rows.cols, group);
    const int64_t first_tile = part * num_tiles / row_tasks, end_tile = (part + 1) * num_tiles / row_tasks;
    const BlockOutput output(out, block, accumulate);
    for (int64_t first = 0; first < rows.groups(); first += groups_per_pass) {
      const int64_t groups = std::min(groups_per_pass, rows.groups() - first);
      for (int64_t tile = first_tile; tile < end_tile; ++tile) {
        output.Add(rows, tile * kCodeRows, codes, first, groups);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
