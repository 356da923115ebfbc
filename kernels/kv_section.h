// The stored form of K or V: one section holds the K (before RoPE) or the V of one layer of one chunk, in one
// run of bytes that can be read from a disk, sent over a network and loaded by a GPU as it is.
//
// With rows = tokens and cols = num_kv_heads * head_dim, a section of a dense encoding is the row-major
// matrix [rows, cols]. A quantized section is three planes, each starting at a multiple of
// kKvSectionAlignment bytes:
//
//     offsets  bf16 [scale_rows, scale_cols]      value = offset + step * code
//     steps    bf16 [scale_rows, scale_cols]
//     codes    int8: u8 [rows, cols]
//              int4: u8 [rows, ceil(cols / 2)], column 2j in the low and 2j + 1 in the high nibble of byte j
//
// or, where codes have signs, two: steps at the section's first byte, then codes.
//
//     steps    bf16 [scale_rows, scale_cols]      value = step * code
//     codes    fp8: E4M3 [rows, cols]
//
// K's channels differ much in size and keep their size from token to token; V's do not. So K is quantized
// per channel over groups of kKvGroup tokens (scales [ceil(rows / kKvGroup), cols]) and V per token over
// groups of kKvGroup channels (scales [rows, ceil(cols / kKvGroup)]). (Liu et al., "KIVI", ICML 2024, section
// 3; Hooper et al., "KVQuant", NeurIPS 2024, sections 3.1 and 3.2, for K before RoPE.)
//
// Offsets round down and steps up, so that the codes reach every value of a group and what bf16 rounds away
// is no error: a value decodes to within half a step. A group that holds a NaN or an infinity decodes to NaN.
//
// E4M3 is a sign, 4 bits of exponent (bias 7) and 3 of mantissa: 0, subnormals from 2^-9, normals from 2^-6
// to 448, no infinities; 0x7F and 0xFF are NaN. (Micikevicius et al., "FP8 Formats for Deep Learning", 2022;
// OCP 8-bit Floating Point Specification 1.0.) The step is the group's largest magnitude / 448, rounded up to
// bf16, but at most 0x1.24p119, so that step * 448 is finite. A code is value * (1 / step), rounded to the
// nearest E4M3, ties to even, at most 448, with the value's sign, zeros too; where 1 / step is not finite
// (all magnitudes below 2^-119) it is a zero. A value decodes to within 1/16 of itself or 2^-10 steps,
// whichever is more. In a group that holds a NaN or an infinity the step is NaN, those are 0x7F and the
// others zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Values are part of stored entries: never renumber.
enum class KvEncoding : uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kInt8 = 3, kInt4 = 4, kFp8 = 5 };

enum class KvPart : uint8_t { kKey, kValue };

inline constexpr int64_t kKvGroup = 32;
inline constexpr int64_t kKvSectionAlignment = 64;  // bytes

constexpr std::string_view Name(KvEncoding encoding) {
  switch (encoding) {
    case KvEncoding::kF32:
      return "f32";
    case KvEncoding::kBF16:
      return "bf16";
    case KvEncoding::kF16:
      return "f16";
    case KvEncoding::kInt8:
      return "int8";
    case KvEncoding::kInt4:
      return "int4";
    case KvEncoding::kFp8:
      return "fp8";
  }
  return "?";
}

/// Whether groups of values share scales.
constexpr bool IsQuantized(KvEncoding encoding) {
  return encoding == KvEncoding::kInt8 || encoding == KvEncoding::kInt4 || encoding == KvEncoding::kFp8;
}

/// Whether the scales of a group are an offset and a step, or a step alone. REQUIRES: IsQuantized(encoding)
constexpr bool HasOffsets(KvEncoding encoding) { return encoding != KvEncoding::kFp8; }

/// The largest code. REQUIRES: IsQuantized(encoding)
constexpr float MaxCode(KvEncoding encoding) {
  if (encoding == KvEncoding::kFp8) return 448.0f;
  return encoding == KvEncoding::kInt8 ? 255.0f : 15.0f;
}

inline constexpr uint16_t kMaxFp8Step = 0x7B12;  // in bf16

constexpr KvEncoding DenseEncoding(DataType dtype) {
  switch (dtype) {
    case DataType::kBF16:
      return KvEncoding::kBF16;
    case DataType::kF16:
      return KvEncoding::kF16;
    case DataType::kInt8:  // no matrix has it
    case DataType::kF32:
      break;
  }
  return KvEncoding::kF32;
}

/// The elements' type. REQUIRES: !IsQuantized(encoding)
constexpr DataType DenseType(KvEncoding encoding) {
  switch (encoding) {
    case KvEncoding::kBF16:
      return DataType::kBF16;
    case KvEncoding::kF16:
      return DataType::kF16;
    default:
      return DataType::kF32;
  }
}

/// Where the planes of a section lie. All sizes in bytes unless they say otherwise.
struct KvSectionLayout {
  int64_t scale_rows = 0;  // 0 for dense encodings
  int64_t scale_cols = 0;
  int64_t offsets = 0;  // from the section's first byte; meaningless without HasOffsets
  int64_t steps = 0;
  int64_t codes = 0;  // the elements where the encoding is dense
  int64_t code_row_bytes = 0;
  int64_t size_bytes = 0;  // of the whole section, a multiple of kKvSectionAlignment
};

/// REQUIRES: rows >= 0, cols >= 1, rows * cols < 2^60
constexpr KvSectionLayout LayoutOf(KvEncoding encoding, KvPart part, int64_t rows, int64_t cols) {
  const auto aligned = [](int64_t bytes) {
    return (bytes + kKvSectionAlignment - 1) / kKvSectionAlignment * kKvSectionAlignment;
  };
  const auto groups = [](int64_t count) { return (count + kKvGroup - 1) / kKvGroup; };
  KvSectionLayout layout;
  if (IsQuantized(encoding)) {
    layout.scale_rows = part == KvPart::kKey ? groups(rows) : rows;
    layout.scale_cols = part == KvPart::kKey ? cols : groups(cols);
    const int64_t plane = aligned(layout.scale_rows * layout.scale_cols * 2);
    layout.steps = HasOffsets(encoding) ? plane : 0;
    layout.codes = layout.steps + plane;
    layout.code_row_bytes = encoding == KvEncoding::kInt4 ? (cols + 1) / 2 : cols;
  } else {
    layout.code_row_bytes = cols * SizeOf(DenseType(encoding));
  }
  layout.size_bytes = aligned(layout.codes + rows * layout.code_row_bytes);
  return layout;
}

/// A section in a backend's memory. Never owns.
struct KvSectionView {
  const void* data = nullptr;  // aligned to kKvSectionAlignment; may be null when rows is 0
  KvEncoding encoding = KvEncoding::kF32;
  KvPart part = KvPart::kKey;
  int64_t rows = 0;
  int64_t cols = 0;

  KvSectionLayout layout() const { return LayoutOf(encoding, part, rows, cols); }
};

/// A dense section as a matrix. REQUIRES: !IsQuantized(section.encoding)
inline ConstMatrixView DenseMatrix(const KvSectionView& section) {
  return {section.data, DenseType(section.encoding), section.rows, section.cols, section.cols};
}

/// A writable section; converts to its read-only form.
struct MutableKvSectionView {
  void* data = nullptr;
  KvEncoding encoding = KvEncoding::kF32;
  KvPart part = KvPart::kKey;
  int64_t rows = 0;
  int64_t cols = 0;

  KvSectionLayout layout() const { return LayoutOf(encoding, part, rows, cols); }
  operator KvSectionView() const { return {data, encoding, part, rows, cols}; }  // NOLINT: deliberate
};

}  // namespace kvblend::kernels
