// Weights kept as the model file's codes: they take a quarter to a half of bf16's memory, and of the time to
// read it, which is all the time that a product of few rows takes.
//
// Sixteen outputs at a time form a column; its bytes lie one after the other, so that a thread reads one
// stream. Per 32 inputs, the codes' bits are cut into planes of 16-bit words, one per output and parity of
// the input:
//   low nibbles         [4][16 outputs][even, odd], each word with the nibbles of 4 inputs of that parity
//   upper bits, 1 each  [1][16][2], 16 inputs per word
//               2 each  [2][16][2],  8 inputs per word
//               4 each  [4][16][2],  4 inputs per word
// so that one shift of 64 bytes brings two inputs of all sixteen outputs into position, in the order in which
// bf16 products take pairs. After the planes of all inputs come the scales, f16 [groups][16], and the minima;
// or, where they are nested, int8 [groups][16] of each, and then what they are multiplied by, f16 [super
// groups][16] of each. So they are what the file has, to the last bit, and take as much memory as there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cpu/machine/weight_arena.h"
#include "kernels/tensor.h"
#include "kernels/weight_source.h"

namespace kvblend::kernels {

/// Outputs per column.
inline constexpr int64_t kColumnOutputs = 16;
/// Inputs whose planes lie together.
inline constexpr int64_t kChunkInputs = 32;

/// One column's bytes and how they are laid out.
struct QuantizedColumn {
  QuantizedFormat format;
  const std::byte* data;
  int64_t chunks;  // inputs / kChunkInputs

  int32_t upper_bits() const { return format.bits - 4; }
  int64_t plane_bytes() const { return 64 * format.bits; }  // per chunk
  int64_t groups() const { return chunks * (kChunkInputs / format.group); }
  /// How many groups of groups there are; REQUIRES: format.nested.
  int64_t super_groups() const { return chunks / (kSuperGroup / kChunkInputs); }
  /// The parts behind the planes. REQUIRES: the format has them.
  const uint16_t* scales() const { return reinterpret_cast<const uint16_t*>(data + chunks * plane_bytes()); }
  const uint16_t* minimums() const { return scales() + groups() * kColumnOutputs; }
  const int8_t* scale_codes() const { return reinterpret_cast<const int8_t*>(data + chunks * plane_bytes()); }
  const int8_t* minimum_codes() const { return scale_codes() + groups() * kColumnOutputs; }
  const uint16_t* super_scales() const {
    const int64_t parts = format.has_minimum ? 2 : 1;
    return reinterpret_cast<const uint16_t*>(scale_codes() + parts * groups() * kColumnOutputs);
  }
  const uint16_t* super_minimums() const { return super_scales() + super_groups() * kColumnOutputs; }
  /// A multiple of 64.
  int64_t bytes() const;
};

/// Immutable after creation, so any number of threads may read it.
class QuantizedMatrix {
 public:
  /// Null where the source's rows cannot be kept as codes: they are not quantized, sixteen neighbours differ
  /// in format, or a scale is too large or too small for f16 (scales and minima are rounded to it; those of
  /// GGUF's simple types are f16). kResourceExhausted naming the size.
  static absl::StatusOr<std::unique_ptr<QuantizedMatrix>> Create(WeightArena& arena, int64_t rows,
                                                                 int64_t cols, const WeightSource& source);

  /// The smallest group of any column's format.
  int64_t smallest_group() const { return smallest_group_; }
  /// The fewest and the most bits that any column's codes have.
  int32_t smallest_bits() const { return smallest_bits_; }
  int32_t largest_bits() const { return largest_bits_; }
  int64_t num_columns() const { return static_cast<int64_t>(columns_.size()); }
  /// Outputs [16 index, 16 index + 16); those past the last row are zero.
  const QuantizedColumn& column(int64_t index) const { return columns_[index]; }

  /// Row `index` dequantized; out: [cols]
  void ReadRow(int64_t index, float* out) const;

 private:
  QuantizedMatrix() = default;
  /// False where the formats do not fit.
  bool LayOut(int64_t rows, int64_t cols, const WeightSource& source);

  WeightBytes bytes_;
  std::vector<QuantizedColumn> columns_;
  int64_t smallest_group_ = kChunkInputs;
  int32_t smallest_bits_ = 8, largest_bits_ = 4;
};

namespace simd {

/// Rows that QuantizedMatVec takes at most. In bf16 on Zen 4 that many take less time than 33 with expanded
/// weights.
inline constexpr int64_t kMaxQuantizedRows = 32;

/// out[r * out_stride + j] (+)= x[r] . W[j] for the `outputs` <= 16 first outputs j of a column, r < rows.
///   x: [rows], x_stride words apart, in words of `dtype` (f32, or pairs of bf16: tiles.h)
///   sums: of every 16 inputs of x, f32 [rows][2 * chunks]
void QuantizedMatVec(const QuantizedColumn& column, DataType dtype, const uint32_t* x, int64_t x_stride,
                     const float* sums, int64_t rows, bool accumulate, int64_t outputs, float* out,
                     int64_t out_stride);

/// Dequantizes a column into words of `dtype`: out[step * out_stride + j] for its sixteen outputs j.
void ExpandColumn(const QuantizedColumn& column, DataType dtype, uint32_t* out, int64_t out_stride);

/// sums[i] = x[16 i] + ... + x[16 i + 15] for n / 16 of them. x: f32 or bf16 [n]
void SumSixteens(const void* x, DataType dtype, int64_t n, float* sums);

}  // namespace simd

}  // namespace kvblend::kernels
