// Products of many rows of codes (code_products.h). Weights are brought into the products' order for every
// call, a block of outputs at a time, so that they lie in memory once.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/linear/linear.h"
#include "kernels/cpu/linear/row_codes.h"
#include "kernels/cpu/simd/simd.h"

namespace kvblend::kernels {

// Rows and their sums stay in the second-level cache beside a block's codes; enough of them that preparing
// the block costs a few hundredths.
inline constexpr int64_t kRowsPerTask = 264;
// Up to 128 KiB of codes stay in the second-level cache while all rows are multiplied by them. Passes that
// fit the first-level cache read and write results more often, and took up to a tenth longer.
template <class Code>
inline constexpr int64_t kInputsPerPass = 512 * CodedRows<Code>::kPerWord;

/// Words that the codes of one block take, with their scales.
template <class Code>
int64_t WordsOfBlock(int64_t cols, int64_t group) {
  return (CodedRows<Code>::BlockWords(cols) + 2 * (cols / group)) * kPackedBlock;
}

/// The codes of one block, in `memory` of WordsOfBlock.
template <class Code>
BlockCodes PrepareBlock(const BlockKernels<Code>& kernels, const QuantizedMatrix& matrix, int64_t block,
                        int64_t cols, int64_t group, uint32_t* memory) {
  const int64_t code_words = CodedRows<Code>::BlockWords(cols) * kPackedBlock,
                scales = cols / group * kPackedBlock;
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

/// The columns of a block in an operation's output. Products write whole tiles of whole blocks there, others
/// by way of a tile of their own.
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

/// Rows in codes, and the parts of them that threads multiply by a block.
template <class Code>
class RowParts {
 public:
  static absl::StatusOr<RowParts> Create(CpuContext& context, const BlockKernels<Code>& kernels,
                                         ConstMatrixView x, int64_t group) {
    auto quantized = QuantizeRows<Code>(context, x, group, kernels.rows, kernels.quantize);
    if (!quantized.ok()) return quantized.status();
    return RowParts(*std::move(quantized), kernels.rows, (x.rows + kernels.rows - 1) / kernels.rows,
                    RowTasks(context.pool, x.rows, kRowsPerTask));
  }

  const CodedRows<Code>& rows() const { return quantized_.rows; }
  int64_t num_parts() const { return num_parts_; }
  int64_t tiles_of(int64_t part) const { return FirstTile(part + 1) - FirstTile(part); }
  bool one_pass() const { return groups_per_pass_ >= rows().groups(); }

  /// Calls body(tile of the part, its first row, first group, number of groups), for all tiles of a part
  /// after each other, and again for further groups.
  template <class Body>
  void ForTiles(int64_t part, const Body& body) const {
    for (int64_t group = 0; group < rows().groups(); group += groups_per_pass_) {
      const int64_t groups = std::min(groups_per_pass_, rows().groups() - group);
      for (int64_t tile = 0; tile < tiles_of(part); ++tile) {
        body(tile, (FirstTile(part) + tile) * tile_rows_, group, groups);
      }
    }
  }

 private:
  RowParts(QuantizedRows<Code> quantized, int64_t tile_rows, int64_t num_tiles, int64_t num_parts)
      : quantized_(std::move(quantized)),
        tile_rows_(tile_rows),
        num_tiles_(num_tiles),
        num_parts_(num_parts),
        groups_per_pass_(std::max<int64_t>(1, kInputsPerPass<Code> / quantized_.rows.group)) {}
  int64_t FirstTile(int64_t part) const { return part * num_tiles_ / num_parts_; }

  QuantizedRows<Code> quantized_;
  int64_t tile_rows_, num_tiles_, num_parts_, groups_per_pass_;
};

/// out (+)= x W^T
template <class Code>
absl::Status ManyRows(CpuContext& context, const BlockKernels<Code>& kernels, ConstMatrixView x,
                      const QuantizedMatrix& matrix, int64_t group, bool accumulate, MatrixView out) {
  const auto parts = RowParts<Code>::Create(context, kernels, x, group);
  if (!parts.ok()) return parts.status();
  const CodedRows<Code>& rows = parts->rows();
  const int64_t num_blocks = (out.cols + kPackedBlock - 1) / kPackedBlock;
  context.pool.ForGrid(parts->num_parts(), num_blocks, [&](int64_t part, int64_t block) {
    auto* memory = ThreadScratch<uint32_t>(ScratchSlot::kCodes, WordsOfBlock<Code>(rows.cols, rows.group));
    const BlockCodes codes = PrepareBlock(kernels, matrix, block, rows.cols, rows.group, memory);
    const BlockOutput output(kernels, out, block, accumulate);
    parts->ForTiles(part, [&](int64_t, int64_t row, int64_t first_group, int64_t num_groups) {
      output.Add(rows, row, codes, first_group, num_groups);
    });
  });
  return absl::OkStatus();
}

/// out = activation(x Gate^T) * (x Up^T), whose sums stay in a cache. matrix: Gate's rows and then Up's,
/// whole blocks of each
template <class Code>
absl::Status GatedManyRows(CpuContext& context, const BlockKernels<Code>& kernels, ConstMatrixView x,
                           const QuantizedMatrix& matrix, int64_t group, Activation activation,
                           MatrixView out) {
  const auto parts = RowParts<Code>::Create(context, kernels, x, group);
  if (!parts.ok()) return parts.status();
  const CodedRows<Code>& rows = parts->rows();
  const int64_t num_blocks = out.cols / kPackedBlock, words = WordsOfBlock<Code>(rows.cols, rows.group),
                tile_sums = kernels.rows * 2 * kPackedBlock;
  context.pool.ForGrid(parts->num_parts(), num_blocks, [&](int64_t part, int64_t block) {
    auto* memory = ThreadScratch<uint32_t>(ScratchSlot::kCodes, 2 * words);
    const BlockCodes gate = PrepareBlock(kernels, matrix, block, rows.cols, rows.group, memory),
                     up = PrepareBlock(kernels, matrix, num_blocks + block, rows.cols, rows.group,
                                       memory + words);
    const int64_t kept_tiles = parts->one_pass() ? 1 : parts->tiles_of(part);
    auto* sums = ThreadScratch<float>(ScratchSlot::kOutput, kept_tiles * tile_sums);
    parts->ForTiles(part, [&](int64_t tile, int64_t row, int64_t first_group, int64_t num_groups) {
      float *of_gate = sums + tile % kept_tiles * tile_sums, *of_up = of_gate + kPackedBlock;
      for (const auto& [codes, target] : {std::pair{&gate, of_gate}, {&up, of_up}}) {
        kernels.multiply(rows.Row(row), *codes, first_group, num_groups, /*accumulate=*/first_group > 0,
                         target, 2 * kPackedBlock);
      }
      if (first_group + num_groups < rows.groups()) return;
      simd::GatedActivationRows(
          activation, of_gate, of_up, 2 * kPackedBlock,
          out.Rows(row, std::min(kernels.rows, out.rows - row)).Columns(block * kPackedBlock, kPackedBlock));
    });
  });
  return absl::OkStatus();
}

}  // namespace kvblend::kernels
