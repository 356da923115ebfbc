// Products in 8 bits: activations and weights as codes, with a step for every group of 16 or 32 inputs of a
// row, as the weights of GGUF files have them. Codes of a group are multiplied and summed as integers,
// exactly; groups are summed in fp32, in order. So a row's result is the same bit for bit in whatever way and
// company it is computed. A large activation makes the others of its group coarse, not its row.
//
// Dettmers et al., "LLM.int8()", NeurIPS 2022, section 2.1, show why one step per row is too few.
//
// Four inputs' codes are one word. Words take the inputs in the order in which a column's planes give them
// with the fewest instructions (quantized_matrix.h): of every eight, 0 4 1 5 and 2 6 3 7.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/cpu/linear/quantized_matrix.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Rows that CodeKernels::multiply takes at most, on any instruction set.
inline constexpr int64_t kMaxCodeRows = 6;
/// Inputs that a word holds.
inline constexpr int64_t kCodesPerWord = 4;

/// Rows of activations; value = step * code. Columns are padded to kChunkInputs with zeros.
struct RowCodes {
  int8_t* codes = nullptr;  // [rows, cols] -127 .. 127, in the order of words
  float* steps = nullptr;   // [rows, groups]
  float* sums = nullptr;    // [rows, groups]: sums of a group's values
  int64_t cols = 0;
  int64_t group = 0;  // inputs: 16 or 32

  int64_t groups() const { return cols / group; }
  RowCodes Row(int64_t index) const {
    return {codes + index * cols, steps + index * groups(), sums + index * groups(), cols, group};
  }
};

/// A block of kPackedBlock outputs; value = step * code + minimum. Outputs behind the last are zeros.
struct BlockCodes {
  uint32_t* codes = nullptr;  // [cols / kCodesPerWord][kPackedBlock] of four codes each, as CodeKernels wants
  float* steps = nullptr;     // [groups][kPackedBlock]
  float* minimums = nullptr;  // [groups][kPackedBlock]
  int32_t bits = 4;           // the most of any of its columns

  BlockCodes Output(int64_t index) const { return {codes + index, steps + index, minimums + index, bits}; }
};

/// The products on one instruction set. Thread-safe functions over memory that callers have checked.
struct CodeKernels {
  std::string_view name;  // "avx2", "avx_vnni", "avx512_vnni"
  int64_t rows;           // of multiply; at most kMaxCodeRows

  /// The codes of a column, for its sixteen outputs. REQUIRES: column.format.group is a multiple of `group`
  void (*expand)(const QuantizedColumn& column, int64_t group, const BlockCodes& out);
  /// out[r * out_stride + j] = (its value, where `accumulate`, or 0) + row r . output j over groups
  /// [first_group, first_group + num_groups), r < rows, j < kPackedBlock. REQUIRES: block came from expand
  void (*multiply)(const RowCodes& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                   bool accumulate, float* out, int64_t out_stride);
  /// The same straight from a column, over all groups, for its sixteen outputs: out[r][j], r < num_rows <=
  /// simd::kMaxQuantizedRows. rows: [num_rows], of which each describes one row, all with the same group
  void (*few_rows)(const QuantizedColumn& column, const RowCodes* rows, int64_t num_rows, bool accumulate,
                   float* const* out);
};

/// The best that the processor has and KVBLEND_CPU allows; null where there are none.
const CodeKernels* BestCodeKernels();

/// Those of every instruction set that the processor has and KVBLEND_CPU allows, the best first; null behind
/// the last. For tests. Returns their number.
inline constexpr int kMaxCodeKernels = 3;
int AllCodeKernels(const CodeKernels* (&out)[kMaxCodeKernels]);

namespace simd {

/// One row. A group of zeros has step 0, one that has a NaN or an infinity has NaN. x: f32 or bf16 [n];
/// out.cols: RoundUp(n, kChunkInputs)
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowCodes& out);

}  // namespace simd
}  // namespace kvblend::kernels
