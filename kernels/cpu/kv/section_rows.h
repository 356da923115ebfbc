// The rows of stored sections (kernels/kv_section.h), one at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/kv_codec.h"
#include "kernels/kv_section.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Rows [row, row + count) of a section, of one group of tokens where K is quantized.
inline simd::StoredRows StoredRowsOf(const KvSectionView& section, int64_t row, int64_t count) {
  const KvSectionLayout layout = section.layout();
  const auto* bytes = static_cast<const std::byte*>(section.data);
  simd::StoredRows rows{.encoding = section.encoding,
                        .codes = bytes + layout.codes + row * layout.code_row_bytes,
                        .row_bytes = layout.code_row_bytes,
                        .scale_cols = layout.scale_cols,
                        .rows = count};
  if (IsQuantized(section.encoding)) {
    const int64_t scale = (section.part == KvPart::kKey ? row / kKvGroup : row) * layout.scale_cols;
    if (HasOffsets(section.encoding)) {
      rows.offsets = reinterpret_cast<const uint16_t*>(bytes + layout.offsets) + scale;
    }
    rows.steps = reinterpret_cast<const uint16_t*>(bytes + layout.steps) + scale;
  }
  return rows;
}

/// Reads the rows of one quantized section. Used by one thread.
class RowDecoder {
 public:
  explicit RowDecoder(const KvSectionView& section)
      : section_(section),
        layout_(section.layout()),
        bytes_(static_cast<const uint8_t*>(section.data)),
        unpacked_(section.encoding == KvEncoding::kInt4
                      ? ThreadScratch<uint8_t>(ScratchSlot::kCodes, section.cols)
                      : nullptr) {}

  /// out: [cols]
  void Decode(int64_t row, float* out) const {
    const uint8_t* codes = bytes_ + layout_.codes + row * layout_.code_row_bytes;
    if (unpacked_ != nullptr) {
      simd::UnpackNibbles(codes, section_.cols, unpacked_);
      codes = unpacked_;
    }
    const int64_t scale_row = section_.part == KvPart::kKey ? row / kKvGroup : row;
    const auto* steps =
        reinterpret_cast<const uint16_t*>(bytes_ + layout_.steps) + scale_row * layout_.scale_cols;
    if (!HasOffsets(section_.encoding)) return DecodeFp8(codes, steps, out);
    const auto* offsets =
        reinterpret_cast<const uint16_t*>(bytes_ + layout_.offsets) + scale_row * layout_.scale_cols;
    if (section_.part == KvPart::kKey) {
      simd::DequantizeRow(codes, offsets, steps, section_.cols, out);
      return;
    }
    for (int64_t col = 0; col < section_.cols; col += kKvGroup) {
      simd::DequantizeGroup(codes + col, Bf16ToF32(*offsets++), Bf16ToF32(*steps++),
                            std::min(kKvGroup, section_.cols - col), out + col);
    }
  }

 private:
  void DecodeFp8(const uint8_t* codes, const uint16_t* steps, float* out) const {
    if (section_.part == KvPart::kKey) return simd::DequantizeRowFp8(codes, steps, section_.cols, out);
    for (int64_t col = 0; col < section_.cols; col += kKvGroup) {
      simd::DequantizeGroupFp8(codes + col, Bf16ToF32(*steps++), std::min(kKvGroup, section_.cols - col),
                               out + col);
    }
  }

  const KvSectionView section_;
  const KvSectionLayout layout_;
  const uint8_t* const bytes_;
  uint8_t* const unpacked_;
};

}  // namespace kvblend::kernels
