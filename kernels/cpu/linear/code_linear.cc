// Products of codes (code_products.h). A few rows are multiplied straight from the weights' codes; for more,
// these are brought into the products' order for every call, a block of outputs at a time, so that weights
// lie in memory once. A row's result is the same bit for bit either way, except with wide groups.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/row_codes.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {
namespace {

// Rows and their sums stay in the second-level cache beside a block's codes; enough of them that preparing
// the block costs a few hundredths.
constexpr int64_t kRowsPerTask = 264;
// Up to 128 KiB of codes stay in the second-level cache while all rows are multiplied by them. Passes that
// fit the first-level cache read and write results more often, and took up to a tenth longer.
template <class Code>
constexpr int64_t kInputsPerPass = 512 * CodedRows<Code>::kPerWord;

// The codes of one block, in the thread's own memory.
template <class Code>
BlockCodes PrepareBlock(const BlockKernels<Code>& kernels, const QuantizedMatrix& matrix, int64_t block,
                        int64_t cols, int64_t group) {
  const int64_t code_words = CodedRows<Code>::BlockWords(cols) * kPackedBlock,
                scales = cols / group * kPackedBlock;
  auto* memory = ThreadScratch<uint32_t>(ScratchSlot::kCodes, code_words + 2 * scales);
  BlockCodes codes{.codes = memory, .steps = reinterpret_cast<float*>(memory + code_words)};
  codes.minimums = codes.steps + scales;
  codes.words = code_words / kPackedBlock;
  codes.width = kernels.width;
  constexpr int64_t kColumns = kPackedBlock / kColumnOutputs;
  const int64_t columns = std::min(kColumns, matrix.num_columns() - block * kColumns);
  if (columns < kColumns) std::memset(memory, 0, (code_words + 2 * scales) * sizeof(uint32_t));
  for (int64_t c = 0; c < columns; ++c) {
    codes.bits = std::max(codes.bits, matrix.column(block * kColumns + c).format.bits);
  }
  for (int64_t c = 0; c < columns; ++c) {
    const QuantizedColumn& column = matrix.column(block * kColumns + c);
    kernels.expand(column, group, codes.Output(c * kColumnOutputs));
  }
  return codes;
}

// The columns of a block in an operation's output. Products write whole tiles of whole blocks there, others
// by way of a tile of their own.
template <class Code>
class BlockOutput {
 public:
  BlockOutput(const BlockKernels<Code>& kernels, MatrixView out, int64_t block, bool accumulate)
      : kernels_(kernels),
        out_(out.Columns(block * kPackedBlock, std::min(kPackedBlock, out.cols - block * kPackedBlock))),
        accumulate_(accumulate) {}

  /// Adds rows [row, row + kernels.rows) times groups of the block. Group 0 comes first: it sets the sums.
  void Add(const CodedRows<Code>& rows, int64_t row, const BlockCodes& block, int64_t first_group,
           int64_t num_groups) const {
    const bool accumulate = accumulate_ || first_group > 0;
    const MatrixView target = out_.Rows(row, std::min(kernels_.rows, out_.rows - row));
    auto* values = static_cast<float*>(target.data);
    if (target.rows == kernels_.rows && target.cols == kPackedBlock) {
      kernels_.multiply(rows.Row(row), block, first_group, num_groups, accumulate, values, target.row_stride);
      return;
    }
    // The same sums in the same order, so that a row's result does not depend on the tile that it is in.
    float tile[kMaxCodeRows * kPackedBlock] = {};
    const auto copy = [&](bool to_tile) {
      for (int64_t r = 0; r < target.rows; ++r) {
        float *in_tile = tile + r * kPackedBlock, *in_out = values + r * target.row_stride;
        std::copy_n(to_tile ? in_out : in_tile, target.cols, to_tile ? in_tile : in_out);
      }
    };
    if (accumulate) copy(/*to_tile=*/true);
    kernels_.multiply(rows.Row(row), block, first_group, num_groups, accumulate, tile, kPackedBlock);
    copy(/*to_tile=*/false);
  }

 private:
  const BlockKernels<Code>& kernels_;
  const MatrixView out_;
  const bool accumulate_;
};

// REQUIRES: x.rows <= kMaxColumnRows
template <class Code>
absl::Status FewRows(CpuContext& context, const ColumnKernels<Code>& kernels, ConstMatrixView x,
                     const QuantizedMatrix& matrix, bool accumulate, MatrixView out) {
  const auto quantized =
      QuantizeRows<Code>(context, x, matrix.smallest_group(), /*tile_rows=*/1, kernels.quantize);
  if (!quantized.ok()) return quantized.status();
  CodedRows<Code> each[kMaxColumnRows];
  for (int64_t r = 0; r < out.rows; ++r) each[r] = quantized->rows.Row(r);
  context.pool.ForStreams(matrix.num_columns(), [&](int64_t c) {
    float* targets[kMaxColumnRows];
    for (int64_t r = 0; r < out.rows; ++r) {
      targets[r] = static_cast<float*>(out.data) + r * out.row_stride + c * kColumnOutputs;
    }
    MultiplyColumn(kernels.multiply, matrix.column(c), each, out.rows, accumulate,
                   std::min(kColumnOutputs, out.cols - c * kColumnOutputs), targets);
  });
  return absl::OkStatus();
}

template <class Code>
absl::Status ManyRows(CpuContext& context, const BlockKernels<Code>& kernels, ConstMatrixView x,
                      const QuantizedMatrix& matrix, int64_t group, bool accumulate, MatrixView out) {
  const auto quantized = QuantizeRows<Code>(context, x, group, kernels.rows, kernels.quantize);
  if (!quantized.ok()) return quantized.status();
  const CodedRows<Code>& rows = quantized->rows;
  const int64_t num_tiles = (out.rows + kernels.rows - 1) / kernels.rows;
  const int64_t row_tasks = RowTasks(context.pool, out.rows, kRowsPerTask);
  const int64_t num_blocks = (out.cols + kPackedBlock - 1) / kPackedBlock;
  const int64_t groups_per_pass = std::max<int64_t>(1, kInputsPerPass<Code> / rows.group);
  context.pool.ForGrid(row_tasks, num_blocks, [&](int64_t part, int64_t block) {
    const BlockCodes codes = PrepareBlock(kernels, matrix, block, rows.cols, rows.group);
    const int64_t first_tile = part * num_tiles / row_tasks, end_tile = (part + 1) * num_tiles / row_tasks;
    const BlockOutput output(kernels, out, block, accumulate);
    for (int64_t first = 0; first < rows.groups(); first += groups_per_pass) {
      const int64_t groups = std::min(groups_per_pass, rows.groups() - first);
      for (int64_t tile = first_tile; tile < end_tile; ++tile) {
        output.Add(rows, tile * kernels.rows, codes, first, groups);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace

template <class Code>
absl::StatusOr<QuantizedRows<Code>> QuantizeRows(CpuContext& context, ConstMatrixView x, int64_t group,
                                                 int64_t tile_rows, RowQuantizer<Code> quantize) {
  const int64_t padded = RoundUp(x.rows, tile_rows);
  QuantizedRows<Code> result;
  result.rows.cols = RoundUp(x.cols, std::max(group, kChunkInputs));
  result.rows.group = group;
  result.rows.tile_rows = tile_rows;
  const int64_t row_codes = result.rows.cols / CodedRows<Code>::kInputs,
                codes_bytes = padded * row_codes * static_cast<int64_t>(sizeof(Code)),
                scales = padded * result.rows.groups();
  const int64_t bytes = codes_bytes + 2 * scales * static_cast<int64_t>(sizeof(float));
  result.lease = context.scratch.Borrow(bytes);
  if (!result.lease) return NoMemoryForLinear("its input as codes");
  result.rows.codes = reinterpret_cast<Code*>(result.lease.data());
  result.rows.steps = reinterpret_cast<float*>(result.lease.data() + codes_bytes);
  result.rows.sums = result.rows.steps + scales;
  ForRows(context.pool, padded, 4 * x.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const CodedRows<Code> row = result.rows.Row(r);
      if (r < x.rows) {
        quantize(x.Rows(r, 1).data, x.dtype, x.cols, row);
      } else {
        for (int64_t g = 0; g < row.groups(); ++g) {
          std::fill_n(row.codes + g * row.group_stride(), row.group_codes(), Code{});
          row.steps[g * tile_rows] = row.sums[g * tile_rows] = 0.0f;
        }
      }
    }
  });
  return result;
}

template absl::StatusOr<QuantizedRows<int8_t>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                            RowQuantizer<int8_t>);
template absl::StatusOr<QuantizedRows<int16_t>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                             RowQuantizer<int16_t>);
template absl::StatusOr<QuantizedRows<CodeTerms>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                               RowQuantizer<CodeTerms>);
template absl::StatusOr<QuantizedRows<WideCode>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t, int64_t,
                                                              RowQuantizer<WideCode>);
template absl::StatusOr<QuantizedRows<AsymmetricGroup>> QuantizeRows(CpuContext&, ConstMatrixView, int64_t,
                                                                     int64_t, RowQuantizer<AsymmetricGroup>);
template absl::StatusOr<QuantizedRows<AsymmetricWholeGroup>> QuantizeRows(CpuContext&, ConstMatrixView,
                                                                          int64_t, int64_t,
                                                                          RowQuantizer<AsymmetricWholeGroup>);

template <class Code>
void MultiplyColumn(ColumnProduct<Code> product, const QuantizedColumn& column, const CodedRows<Code>* rows,
                    int64_t num_rows, bool accumulate, int64_t outputs, float* const* out) {
  if (outputs == kColumnOutputs) return product(column, rows, num_rows, accumulate, out);
  float results[kMaxColumnRows][kColumnOutputs] = {};
  float* targets[kMaxColumnRows] = {};
  for (int64_t r = 0; r < num_rows; ++r) {
    targets[r] = results[r];
    if (accumulate) std::copy_n(out[r], outputs, results[r]);
  }
  product(column, rows, num_rows, accumulate, targets);
  for (int64_t r = 0; r < num_rows; ++r) std::copy_n(results[r], outputs, out[r]);
}

template void MultiplyColumn(ColumnProduct<int8_t>, const QuantizedColumn&, const RowCodes*, int64_t, bool,
                             int64_t, float* const*);
template void MultiplyColumn(ColumnProduct<int16_t>, const QuantizedColumn&, const RowPairs*, int64_t, bool,
                             int64_t, float* const*);
template void MultiplyColumn(ColumnProduct<CodeTerms>, const QuantizedColumn&, const RowTerms*, int64_t, bool,
                             int64_t, float* const*);

absl::Status Int8Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                        MatrixView out) {
  const CodeKernels& kernels = *context.codes;
  const QuantizedMatrix& matrix = *weights.quantized();
  if (x.rows <= kMaxColumnRows) return FewRows(context, kernels.few_rows, x, matrix, accumulate, out);
  return ManyRows(context, kernels.bytes, x, matrix, matrix.smallest_group(), accumulate, out);
}

absl::Status WideInt16Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                             bool accumulate, MatrixView out) {
  return ManyRows(context, context.pairs->wide, x, *weights.quantized(), WideGroup(x.cols), accumulate, out);
}

bool TakesAsymmetricCodes(const CpuContext& context, ConstMatrixView x, const CpuWeights& weights) {
  return context.tolerant != nullptr && weights.usage() == WeightUsage::kTolerantLinear &&
         weights.quantized() != nullptr && x.rows > weights.rows_as_alone() &&
         weights.quantized()->smallest_group() == AsymmetricGroup::kInputs &&
         weights.quantized()->largest_bits() <= AsymmetricGroup::kMostWeightBits;
}

absl::Status AsymmetricLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights,
                              bool accumulate, MatrixView out) {
  const CodeKernels& kernels = *context.tolerant;
  if (kernels.whole_groups.multiply != nullptr) {
    return ManyRows(context, kernels.whole_groups, x, *weights.quantized(), AsymmetricWholeGroup::kInputs,
                    accumulate, out);
  }
  return ManyRows(context, kernels.asymmetric, x, *weights.quantized(), AsymmetricGroup::kInputs, accumulate,
                  out);
}

absl::Status Int16Linear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                         MatrixView out) {
  const CodeKernels& kernels = context.pairs != nullptr ? *context.pairs : *context.few_pairs;
  const QuantizedMatrix& matrix = *weights.quantized();
  if (x.rows > weights.rows_as_alone()) return WideInt16Linear(context, x, weights, accumulate, out);
  if (x.rows > kMaxColumnRows) {
    return ManyRows(context, kernels.pairs, x, matrix, matrix.smallest_group(), accumulate, out);
  }
  if (kernels.FewRowsAsPairs(matrix.smallest_bits())) {
    return FewRows(context, kernels.few_pair_rows, x, matrix, accumulate, out);
  }
  return FewRows(context, kernels.few_term_rows, x, matrix, accumulate, out);
}

}  // namespace kvblend::kernels
