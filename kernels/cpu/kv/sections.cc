#include "kernels/cpu/kv/sections.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kv/section_rows.h"
#include "kernels/cpu/machine/scratch.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/kv_codec.h"

namespace kvblend::kernels {
namespace {

/// Writes rows of one quantized section. Used by one thread.
class RowEncoder {
 public:
  explicit RowEncoder(const MutableKvSectionView& section)
      : section_(section),
        layout_(section.layout()),
        bytes_(static_cast<uint8_t*>(section.data)),
        max_code_(MaxCode(section.encoding)),
        unpacked_(section.encoding == KvEncoding::kInt4
                      ? ThreadScratch<uint8_t>(ScratchSlot::kCodes, section.cols)
                      : nullptr) {}

  /// One group of K: tokens [begin, end), one scale per channel.
  void EncodeTokens(ConstMatrixView in, int64_t begin, int64_t end) const {
    const int64_t cols = section_.cols;
    auto* offsets = ThreadScratch<float>(ScratchSlot::kRow, 2 * cols);
    float* inverse_steps = offsets + cols;
    simd::ColumnRanges(Row(in, begin), in.row_stride, end - begin, cols, offsets, inverse_steps);
    for (int64_t col = 0; col < cols; ++col) {
      const KvScale scale = ScaleOf(offsets[col], inverse_steps[col], section_.encoding);
      StoreScale(begin / kKvGroup * layout_.scale_cols + col, scale);
      offsets[col] = Bf16ToF32(scale.offset);
      inverse_steps[col] = InverseStep(scale.step);
    }
    for (int64_t row = begin; row < end; ++row) {
      if (HasOffsets(section_.encoding)) {
        simd::QuantizeRow(Row(in, row), offsets, inverse_steps, max_code_, cols, Codes(row));
      } else {
        simd::QuantizeRowFp8(Row(in, row), inverse_steps, cols, Codes(row));
      }
      FinishCodes(row);
    }
  }

  /// One token of V, one scale per group of channels.
  void EncodeChannels(ConstMatrixView in, int64_t row) const {
    for (int64_t col = 0; col < section_.cols; col += kKvGroup) {
      const int64_t count = std::min(kKvGroup, section_.cols - col);
      float low = 0, high = 0;
      simd::RowRange(Row(in, row) + col, count, &low, &high);
      const KvScale scale = ScaleOf(low, high, section_.encoding);
      StoreScale(row * layout_.scale_cols + col / kKvGroup, scale);
      const float inverse_step = InverseStep(scale.step);
      if (HasOffsets(section_.encoding)) {
        simd::QuantizeGroup(Row(in, row) + col, Bf16ToF32(scale.offset), inverse_step, max_code_, count,
                            Codes(row) + col);
      } else {
        simd::QuantizeGroupFp8(Row(in, row) + col, inverse_step, count, Codes(row) + col);
      }
    }
    FinishCodes(row);
  }

 private:
  static const float* Row(ConstMatrixView in, int64_t row) {
    return static_cast<const float*>(in.data) + row * in.row_stride;
  }
  void StoreScale(int64_t index, const KvScale& scale) const {
    if (HasOffsets(section_.encoding)) {
      reinterpret_cast<uint16_t*>(bytes_ + layout_.offsets)[index] = scale.offset;
    }
    reinterpret_cast<uint16_t*>(bytes_ + layout_.steps)[index] = scale.step;
  }
  uint8_t* Codes(int64_t row) const {
    return unpacked_ != nullptr ? unpacked_ : bytes_ + layout_.codes + row * layout_.code_row_bytes;
  }
  void FinishCodes(int64_t row) const {
    if (unpacked_ == nullptr) return;
    simd::PackNibbles(unpacked_, section_.cols, bytes_ + layout_.codes + row * layout_.code_row_bytes);
  }

  const MutableKvSectionView section_;
  const KvSectionLayout layout_;
  uint8_t* const bytes_;
  const float max_code_;
  uint8_t* const unpacked_;
};

}  // namespace

void CpuEncodeKv(CpuContext& context, ConstMatrixView in, MutableKvSectionView out) {
  if (out.rows == 0) return;
  const KvSectionLayout layout = out.layout();
  auto* bytes = static_cast<std::byte*>(out.data);
  const auto zero = [&](int64_t begin, int64_t end) { std::memset(bytes + begin, 0, end - begin); };
  zero(layout.codes + out.rows * layout.code_row_bytes, layout.size_bytes);
  if (!IsQuantized(out.encoding)) {
    const DataType dtype = DenseType(out.encoding);
    ForRows(context.pool, out.rows, out.cols * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        simd::ConvertRow(in.Rows(i, 1).data, DataType::kF32, bytes + i * layout.code_row_bytes, dtype,
                         out.cols);
      }
    });
    return;
  }
  const int64_t scale_bytes = layout.scale_rows * layout.scale_cols * 2;
  if (HasOffsets(out.encoding)) zero(layout.offsets + scale_bytes, layout.steps);
  zero(layout.steps + scale_bytes, layout.codes);
  if (out.part == KvPart::kKey) {
    ForRows(context.pool, layout.scale_rows, kKvGroup * out.cols * 12, [&](int64_t begin, int64_t end) {
      const RowEncoder encoder(out);
      for (int64_t group = begin; group < end; ++group) {
        encoder.EncodeTokens(in, group * kKvGroup, std::min((group + 1) * kKvGroup, out.rows));
      }
    });
  } else {
    ForRows(context.pool, out.rows, out.cols * 12, [&](int64_t begin, int64_t end) {
      const RowEncoder encoder(out);
      for (int64_t i = begin; i < end; ++i) encoder.EncodeChannels(in, i);
    });
  }
}

void CpuKvDeviation(CpuContext& context, ConstMatrixView fresh, KvSectionView stored, float* out) {
  ForRows(context.pool, fresh.rows, fresh.cols * 8, [&](int64_t begin, int64_t end) {
    const auto compare = [&](int64_t i, const void* row, DataType dtype) {
      const auto* fresh_row = static_cast<const float*>(fresh.Rows(i, 1).data);
      out[i] = simd::SquaredDistance(fresh_row, row, dtype, fresh.cols);
    };
    if (!IsQuantized(stored.encoding)) {
      const ConstMatrixView dense = DenseMatrix(stored);
      for (int64_t i = begin; i < end; ++i) compare(i, dense.Rows(i, 1).data, dense.dtype);
      return;
    }
    const RowDecoder decoder(stored);
    auto* decoded = ThreadScratch<float>(ScratchSlot::kDecoded, stored.cols);
    for (int64_t i = begin; i < end; ++i) {
      decoder.Decode(i, decoded);
      compare(i, decoded, DataType::kF32);
    }
  });
}

}  // namespace kvblend::kernels
