#include "kernels/cpu/kv_sections.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/host/kv_codec.h"
#include "kernels/host/page_codec.h"

namespace kvblend::kernels {
namespace {

ConstMatrixView DenseMatrix(const KvSectionView& section) {
  return {section.data, DenseType(section.encoding), section.rows, section.cols, section.cols};
}

void ScatterRowToCodes(const KvTarget& target, int64_t row, const void* k, const void* v, DataType dtype) {
  const KvPagesView& pages = target.pages;
  const PageValues keys = PageValues::Keys(pages), values = PageValues::Values(pages);
  const int64_t head_dim = pages.head_dim, num_values = pages.num_kv_heads * head_dim;
  const int32_t position = target.plan.position(row), sequence = target.plan.sequence_of_row(row);
  auto* heads = ThreadScratch<float>(ScratchSlot::kHeads, 2 * num_values);
  simd::RotateHeadsTo(target.rope.layout(), target.rope.cos(position), target.rope.sin(position), head_dim,
                      pages.num_kv_heads, k, dtype, heads, DataType::kF32, head_dim);
  simd::ConvertRow(v, dtype, heads + num_values, DataType::kF32, num_values);
  for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
    const int64_t slot = target.plan.Slot(pages, sequence, h, position);
    const float* head = heads + h * head_dim;
    simd::QuantiseHead(head, head_dim, keys.CodesAt(slot), keys.StepsAt(slot));
    simd::QuantiseHead(head + num_values, head_dim, values.CodesAt(slot), values.StepsAt(slot));
  }
}

void ScatterRow(const KvTarget& target, int64_t row, const void* k, const void* v, DataType dtype) {
  const KvPagesView& pages = target.pages;
  if (pages.dtype == DataType::kInt8) return ScatterRowToCodes(target, row, k, v, dtype);
  const int32_t position = target.plan.position(row);
  const int64_t slot =
      target.plan.Slot(pages, target.plan.sequence_of_row(row), 0, position) * SizeOf(pages.dtype);
  const int64_t head_stride = int64_t{pages.page_size} * pages.head_dim;
  simd::RotateHeadsTo(target.rope.layout(), target.rope.cos(position), target.rope.sin(position),
                      pages.head_dim, pages.num_kv_heads, k, dtype, static_cast<std::byte*>(pages.k) + slot,
                      pages.dtype, head_stride);
  const auto* values = static_cast<const std::byte*>(v);
  auto* out = static_cast<std::byte*>(pages.v) + slot;
  for (int32_t h = 0; h < pages.num_kv_heads; ++h) {
    simd::ConvertRow(values + h * pages.head_dim * SizeOf(dtype), dtype,
                     out + h * head_stride * SizeOf(pages.dtype), pages.dtype, pages.head_dim);
  }
}

/// Whether the fused loads take the section; others are decoded into rows of f32 first.
bool LoadsDirectly(const KvPagesView& pages, KvEncoding encoding) {
  const auto in_lines = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % 64 == 0; };
  return pages.dtype == DataType::kBF16 && simd::LoadsHeads(pages.head_dim) && in_lines(pages.k) &&
         in_lines(pages.v) && (IsQuantised(encoding) || encoding == KvEncoding::kBF16);
}

simd::StoredRows StoredRowsOf(const KvSectionView& section, int64_t row, int64_t count) {
  const KvSectionLayout layout = section.layout();
  const auto* bytes = static_cast<const std::byte*>(section.data);
  simd::StoredRows rows{.encoding = section.encoding,
                        .codes = bytes + layout.codes + row * layout.code_row_bytes,
                        .row_bytes = layout.code_row_bytes,
                        .scale_cols = layout.scale_cols,
                        .rows = count};
  if (IsQuantised(section.encoding)) {
    const int64_t scale = (section.part == KvPart::kKey ? row / kKvGroup : row) * layout.scale_cols;
    if (HasOffsets(section.encoding)) {
      rows.offsets = reinterpret_cast<const uint16_t*>(bytes + layout.offsets) + scale;
    }
    rows.steps = reinterpret_cast<const uint16_t*>(bytes + layout.steps) + scale;
  }
  return rows;
}

/// Rows [row, row + count) of one group of tokens.
void LoadGroup(const KvTarget& target, int64_t row, int64_t count, const KvSectionView& k,
               const KvSectionView& v) {
  const KvPagesView& pages = target.pages;
  std::array<int64_t, kKvGroup> slots;
  std::array<const float*, kKvGroup> cos;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t position = target.plan.position(row + i);
    slots[i] = target.plan.Slot(pages, target.plan.sequence_of_row(row + i), 0, position);
    cos[i] = target.rope.cos(position);
  }
  simd::PageRows out{.pages = static_cast<uint16_t*>(pages.k),
                     .slots = slots.data(),
                     .head_stride = int64_t{pages.page_size} * pages.head_dim,
                     .num_heads = pages.num_kv_heads,
                     .head_dim = pages.head_dim};
  simd::LoadKeys(StoredRowsOf(k, row, count), target.rope.layout(), cos.data(), out);
  out.pages = static_cast<uint16_t*>(pages.v);
  simd::LoadValues(StoredRowsOf(v, row, count), out);
}

/// Reads the rows of one quantised section. Used by one thread.
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
      simd::DequantiseRow(codes, offsets, steps, section_.cols, out);
      return;
    }
    for (int64_t col = 0; col < section_.cols; col += kKvGroup) {
      simd::DequantiseGroup(codes + col, Bf16ToF32(*offsets++), Bf16ToF32(*steps++),
                            std::min(kKvGroup, section_.cols - col), out + col);
    }
  }

 private:
  void DecodeFp8(const uint8_t* codes, const uint16_t* steps, float* out) const {
    if (section_.part == KvPart::kKey) return simd::DequantiseRowFp8(codes, steps, section_.cols, out);
    for (int64_t col = 0; col < section_.cols; col += kKvGroup) {
      simd::DequantiseGroupFp8(codes + col, Bf16ToF32(*steps++), std::min(kKvGroup, section_.cols - col),
                               out + col);
    }
  }

  const KvSectionView section_;
  const KvSectionLayout layout_;
  const uint8_t* const bytes_;
  uint8_t* const unpacked_;
};

/// Writes rows of one quantised section. Used by one thread.
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
        simd::QuantiseRow(Row(in, row), offsets, inverse_steps, max_code_, cols, Codes(row));
      } else {
        simd::QuantiseRowFp8(Row(in, row), inverse_steps, cols, Codes(row));
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
        simd::QuantiseGroup(Row(in, row) + col, Bf16ToF32(scale.offset), inverse_step, max_code_, count,
                            Codes(row) + col);
      } else {
        simd::QuantiseGroupFp8(Row(in, row) + col, inverse_step, count, Codes(row) + col);
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

void CpuKvScatter(CpuContext& context, const KvTarget& target, ConstMatrixView k, ConstMatrixView v) {
  ForRows(context.pool, k.rows, k.cols * 8, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ScatterRow(target, i, k.Rows(i, 1).data, v.Rows(i, 1).data, k.dtype);
    }
  });
}

void CpuKvLoad(CpuContext& context, const KvTarget& target, KvSectionView k, KvSectionView v) {
  if (LoadsDirectly(target.pages, k.encoding)) {
    // Some groups at a time: the end of a part waits for its writes.
    constexpr int64_t kGroupsPerPart = 4;
    constexpr int64_t kPartRows = kGroupsPerPart * kKvGroup;
    context.pool.ParallelFor((k.rows + kPartRows - 1) / kPartRows, [&](int64_t part) {
      const int64_t end = std::min(k.rows, (part + 1) * kPartRows);
      for (int64_t i = part * kPartRows; i < end; i += kKvGroup) {
        LoadGroup(target, i, std::min(kKvGroup, end - i), k, v);
      }
      simd::FinishLoads();
    });
    return;
  }
  if (!IsQuantised(k.encoding)) return CpuKvScatter(context, target, DenseMatrix(k), DenseMatrix(v));
  ForRows(context.pool, k.rows, k.cols * 8, [&](int64_t begin, int64_t end) {
    const RowDecoder keys(k), values(v);
    auto* decoded = ThreadScratch<float>(ScratchSlot::kDecoded, 2 * k.cols);
    for (int64_t i = begin; i < end; ++i) {
      keys.Decode(i, decoded);
      values.Decode(i, decoded + k.cols);
      ScatterRow(target, i, decoded, decoded + k.cols, DataType::kF32);
    }
  });
}

void CpuEncodeKv(CpuContext& context, ConstMatrixView in, MutableKvSectionView out) {
  if (out.rows == 0) return;
  const KvSectionLayout layout = out.layout();
  auto* bytes = static_cast<std::byte*>(out.data);
  const auto zero = [&](int64_t begin, int64_t end) { std::memset(bytes + begin, 0, end - begin); };
  zero(layout.codes + out.rows * layout.code_row_bytes, layout.size_bytes);
  if (!IsQuantised(out.encoding)) {
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

void CpuDecodeKv(CpuContext& context, KvSectionView in, MatrixView out) {
  ForRows(context.pool, in.rows, in.cols * 8, [&](int64_t begin, int64_t end) {
    if (!IsQuantised(in.encoding)) {
      const ConstMatrixView dense = DenseMatrix(in);
      for (int64_t i = begin; i < end; ++i) {
        simd::ConvertRow(dense.Rows(i, 1).data, dense.dtype, out.Rows(i, 1).data, out.dtype, in.cols);
      }
      return;
    }
    const RowDecoder decoder(in);
    for (int64_t i = begin; i < end; ++i) decoder.Decode(i, static_cast<float*>(out.Rows(i, 1).data));
  });
}

void CpuKvDeviation(CpuContext& context, ConstMatrixView fresh, KvSectionView stored, DeviationMetric metric,
                    float* out) {
  ForRows(context.pool, fresh.rows, fresh.cols * 8, [&](int64_t begin, int64_t end) {
    const auto compare = [&](int64_t i, const void* row, DataType dtype) {
      const auto* fresh_row = static_cast<const float*>(fresh.Rows(i, 1).data);
      out[i] = simd::Distance(fresh_row, row, dtype, metric, fresh.cols);
    };
    if (!IsQuantised(stored.encoding)) {
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
