#include "kernels/reference/encode_section.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/host/kv_codec.h"

namespace kvblend::kernels {
namespace {

float Value(ConstMatrixView m, int64_t row, int64_t col) {
  return static_cast<const float*>(m.data)[row * m.row_stride + col];
}

struct Range {
  int64_t begin, end;
};

// Encodes one group of values: rows x cols of `in`, which share their scales.
void EncodeGroup(ConstMatrixView in, MutableKvSectionView out, const KvSectionLayout& layout, Range rows,
                 Range cols) {
  float low = Value(in, rows.begin, cols.begin), high = low;
  bool finite = true;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t col = cols.begin; col < cols.end; ++col) {
      const float value = Value(in, row, col);
      finite &= std::isfinite(value);
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  const KvScale scale = ScaleOf(finite ? low : NAN, high, out.encoding);
  auto* bytes = static_cast<uint8_t*>(out.data);
  const int64_t index = out.part == KvPart::kKey ? rows.begin / kKvGroup * layout.scale_cols + cols.begin
                                                 : rows.begin * layout.scale_cols + cols.begin / kKvGroup;
  if (HasOffsets(out.encoding)) std::memcpy(bytes + layout.offsets + 2 * index, &scale.offset, 2);
  std::memcpy(bytes + layout.steps + 2 * index, &scale.step, 2);
  const float inverse_step = InverseStep(scale.step);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    uint8_t* codes = bytes + layout.codes + row * layout.code_row_bytes;
    for (int64_t col = cols.begin; col < cols.end; ++col) {
      const uint8_t code = CodeOf(Value(in, row, col), Bf16ToF32(scale.offset), inverse_step, out.encoding);
      if (out.encoding == KvEncoding::kInt4) {
        codes[col / 2] |= static_cast<uint8_t>(code << (col % 2 * 4));
      } else {
        codes[col] = code;
      }
    }
  }
}

}  // namespace

void EncodeSection(ConstMatrixView in, MutableKvSectionView out) {
  if (out.rows == 0) return;
  const KvSectionLayout layout = out.layout();
  auto* bytes = static_cast<std::byte*>(out.data);
  std::memset(bytes, 0, layout.size_bytes);
  if (!IsQuantized(out.encoding)) {
    for (int64_t row = 0; row < out.rows; ++row) {
      for (int64_t col = 0; col < out.cols; ++col) {
        StoreElement(bytes, DenseType(out.encoding), row * out.cols + col, Value(in, row, col));
      }
    }
    return;
  }
  const int64_t group_rows = out.part == KvPart::kKey ? kKvGroup : 1;
  const int64_t group_cols = out.part == KvPart::kKey ? 1 : kKvGroup;
  for (int64_t row = 0; row < out.rows; row += group_rows) {
    for (int64_t col = 0; col < out.cols; col += group_cols) {
      EncodeGroup(in, out, layout, {row, std::min(row + group_rows, out.rows)},
                  {col, std::min(col + group_cols, out.cols)});
    }
  }
}

}  // namespace kvblend::kernels
