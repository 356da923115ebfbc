// Quantized KV, one value or group at a time: the definition that vectorised code is held against.
// kernels/kv_section.h defines the encodings.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/host/float_convert.h"
#include "kernels/kv_section.h"

namespace kvblend::kernels {

/// The largest bf16 value that is at most `value`. NaN stays NaN.
inline uint16_t FloorToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return F32ToBf16(value);
  const bool cut = (bits & 0xFFFFu) != 0;
  return static_cast<uint16_t>((bits >> 16) + (cut && (bits >> 31) != 0 ? 1 : 0));
}

/// The smallest bf16 value that is at least `value`, which is >= 0 or NaN.
inline uint16_t CeilToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return F32ToBf16(value);
  return static_cast<uint16_t>((bits >> 16) + ((bits & 0xFFFFu) != 0 ? 1 : 0));
}

/// The bf16 scales of one group of values.
struct KvScale {
  uint16_t offset = 0;  // stays 0 for encodings without offsets
  uint16_t step = 0;
};

/// Scales of a group whose smallest and largest values are `low` and `high`; a NaN or an infinity in either
/// gives scales that decode every code to NaN.
inline KvScale ScaleOf(float low, float high, KvEncoding encoding) {
  constexpr uint16_t kNan = 0x7FC0;
  const float max_code = MaxCode(encoding);
  if (!HasOffsets(encoding)) {
    if (!std::isfinite(low) || !std::isfinite(high)) return {0, kNan};
    const float largest = std::max(std::fabs(low), std::fabs(high));
    return {0, std::min(CeilToBf16(largest / max_code), kMaxFp8Step)};
  }
  const uint16_t offset = FloorToBf16(low);
  const uint16_t step = CeilToBf16(high / max_code - Bf16ToF32(offset) / max_code);
  if (!std::isfinite(low) || !std::isfinite(high) || !std::isfinite(Bf16ToF32(offset)) ||
      !std::isfinite(Bf16ToF32(step))) {
    return {kNan, kNan};
  }
  return {offset, step};
}

/// What values are multiplied with, after the offset is subtracted, to become codes. 0 for groups whose codes
/// are all 0.
inline float InverseStep(uint16_t step) {
  const float inverse = 1.0f / Bf16ToF32(step);
  return std::isfinite(inverse) ? inverse : 0.0f;
}

/// Rounds to nearest even; to what the encoding's codes reach.
inline uint8_t CodeOf(float value, float offset, float inverse_step, KvEncoding encoding) {
  if (!HasOffsets(encoding)) return F32ToE4M3(value * inverse_step);
  const float max_code = MaxCode(encoding);
  const float code = std::nearbyint((value - offset) * inverse_step);
  return static_cast<uint8_t>(code > 0 ? (code < max_code ? code : max_code) : 0.0f);
}

/// Element (row, col) of a section.
inline float LoadSectionElement(const KvSectionView& section, const KvSectionLayout& layout, int64_t row,
                                int64_t col) {
  const auto* bytes = static_cast<const uint8_t*>(section.data);
  if (!IsQuantized(section.encoding)) {
    return LoadElement(bytes, DenseType(section.encoding), row * section.cols + col);
  }
  const int64_t scale = section.part == KvPart::kKey ? row / kKvGroup * layout.scale_cols + col
                                                     : row * layout.scale_cols + col / kKvGroup;
  const float step = LoadElement(bytes + layout.steps, DataType::kBF16, scale);
  const uint8_t* codes = bytes + layout.codes + row * layout.code_row_bytes;
  if (!HasOffsets(section.encoding)) return step * E4M3ToF32(codes[col]);
  const float offset = LoadElement(bytes + layout.offsets, DataType::kBF16, scale);
  const int code = section.encoding == KvEncoding::kInt8 ? codes[col] : codes[col / 2] >> (col % 2 * 4) & 15;
  return offset + step * static_cast<float>(code);
}

}  // namespace kvblend::kernels
