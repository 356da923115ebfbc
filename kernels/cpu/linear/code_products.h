// Products in 8 bits: activations and weights as codes, with a step for every group of 16 or 32 inputs of a
// row, as the weights of GGUF files have them. Codes of a group are multiplied and summed as integers,
// exactly; groups are summed in fp32. A large activation makes the others of its group coarse, not its row.
//
// Dettmers et al., "LLM.int8()", NeurIPS 2022, section 2.1, show why one step per row is too few.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear/quantized_matrix.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Rows that MultiplyCodes takes.
inline constexpr int64_t kCodeRows = 6;
/// Inputs that a word holds.
inline constexpr int64_t kCodesPerWord = 4;

/// Rows of activations; value = step * code. Columns are padded to kChunkInputs with zeros.
struct RowCodes {
  int8_t* codes = nullptr;  // [rows, cols] -127 .. 127
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
  uint32_t* codes = nullptr;  // [cols / kCodesPerWord][kPackedBlock] of four codes 0 .. 255 each
  float* steps = nullptr;     // [groups][kPackedBlock]
  float* minimums = nullptr;  // [groups][kPackedBlock]

  BlockCodes Output(int64_t index) const { return {codes + index, steps + index, minimums + index}; }
};

namespace simd {

/// One row. A group of zeros has step 0, one that has a NaN or an infinity has NaN. x: f32 or bf16 [n];
/// out.cols: RoundUp(n, kChunkInputs)
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowCodes& out);

/// A block of weights in words of `dtype`, [steps][kPackedBlock] (tiles.h), to the nearest of 255 codes with
/// steps of their own for every `group` of `cols` inputs; inputs behind the last word are zeros.
void QuantizeWeightBlock(const uint32_t* words, DataType dtype, int64_t steps, int64_t cols, int64_t group,
                         const BlockCodes& out);

/// The codes of a column as they are, for its sixteen outputs. REQUIRES: column.format.group is a multiple of
/// `group`
void ExpandCodes(const QuantizedColumn& column, int64_t group, const BlockCodes& out);

/// Whether MultiplyCodes exists: AVX512-VNNI.
bool HasCodeProducts();

/// out[r * out_stride + j] (+)= row r . output j over groups [first_group, first_group + num_groups),
/// r < kCodeRows, j < kPackedBlock.
void MultiplyCodes(const RowCodes& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                   bool accumulate, float* out, int64_t out_stride);

}  // namespace simd
}  // namespace kvblend::kernels
