// EncodeKv: the bytes that kernels/reference/encode_section.cc defines.
#include "kernels/cuda/device/e4m3.h"
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kGroup = static_cast<int>(kKvGroup);

KVBLEND_DEVICE bool IsFinite(float value) { return (FloatBits(value) & 0x7F800000u) != 0x7F800000u; }

KVBLEND_DEVICE float Magnitude(float value) { return FloatFromBits(FloatBits(value) & 0x7FFFFFFFu); }

// `value` is finite.
KVBLEND_DEVICE uint16_t FloorBf16(float value) {
  const uint32_t bits = FloatBits(value);
  return static_cast<uint16_t>((bits >> 16) + ((bits & 0xFFFFu) != 0 && (bits >> 31) != 0 ? 1 : 0));
}
KVBLEND_DEVICE uint16_t CeilBf16(float value) {
  const uint32_t bits = FloatBits(value);
  return static_cast<uint16_t>((bits >> 16) + ((bits & 0xFFFFu) != 0 ? 1 : 0));
}

struct Scale {
  uint16_t offset, step;  // offset 0 where there is none
};

KVBLEND_DEVICE Scale ScaleOfRange(bool finite, float low, float high, KvEncoding encoding) {
  constexpr Scale kNan{0x7FC0, 0x7FC0};
  const float max_code = MaxCode(encoding);
  if (!HasOffsets(encoding)) {
    if (!finite) return {0, kNan.step};
    const uint16_t step = CeilBf16(DivRn(Max(Magnitude(low), Magnitude(high)), max_code));
    constexpr uint16_t kMax = kMaxFp8Step;
    return {0, step < kMax ? step : kMax};
  }
  if (!finite) return kNan;
  const uint16_t offset = FloorBf16(low);
  const float width = SubRn(DivRn(high, max_code), DivRn(FromBf16(offset), max_code));
  if (!IsFinite(width)) return kNan;
  const uint16_t step = CeilBf16(width);
  return IsFinite(FromBf16(offset)) && IsFinite(FromBf16(step)) ? Scale{offset, step} : kNan;
}

KVBLEND_DEVICE uint32_t CodeOfValue(float value, const Scale& scale, KvEncoding encoding) {
  float inverse = DivRn(1.0f, FromBf16(scale.step));
  if (!IsFinite(inverse)) inverse = 0.0f;
  if (!HasOffsets(encoding)) return ToE4M3(MulRn(value, inverse));
  const float max_code = MaxCode(encoding);
  const float code = RoundToInt(MulRn(SubRn(value, FromBf16(scale.offset)), inverse));
  return static_cast<uint32_t>(code > 0 ? (code < max_code ? code : max_code) : 0.0f);
}

struct EncodeParams {
  ConstMatrixView in;
  unsigned char* out;
  int64_t rows, cols;
  int64_t scale_cols, steps, codes, code_row_bytes;
  KvEncoding encoding;
};

KVBLEND_DEVICE void StoreScale(const EncodeParams& p, int64_t index, const Scale& scale) {
  if (HasOffsets(p.encoding)) reinterpret_cast<uint16_t*>(p.out)[index] = scale.offset;
  reinterpret_cast<uint16_t*>(p.out + p.steps)[index] = scale.step;
}

// K: a thread takes two columns, which share the bytes of 4-bit codes, of one group of rows.
KVBLEND_KERNEL(kThreads, 8) EncodeKeysKernel(EncodeParams p) {
  const int64_t col = (int64_t{BlockX()} * kThreads + ThreadIndex()) * 2;
  if (col >= p.cols) return;
  const int64_t row_begin = int64_t{BlockY()} * kGroup;
  const int64_t row_end = row_begin + kGroup < p.rows ? row_begin + kGroup : p.rows;
  const int columns = col + 1 < p.cols ? 2 : 1;
  const float* in = static_cast<const float*>(p.in.data) + col;
  Scale scales[2];
  KVBLEND_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (i >= columns) break;
    float low = in[row_begin * p.in.row_stride + i], high = low;
    bool finite = true;
    for (int64_t row = row_begin; row < row_end; ++row) {
      const float value = in[row * p.in.row_stride + i];
      finite = finite && IsFinite(value);
      low = value < low ? value : low;
      high = value > high ? value : high;
    }
    scales[i] = ScaleOfRange(finite, low, high, p.encoding);
    StoreScale(p, int64_t{BlockY()} * p.scale_cols + col + i, scales[i]);
  }
  for (int64_t row = row_begin; row < row_end; ++row) {
    unsigned char* codes = p.out + p.codes + row * p.code_row_bytes;
    uint32_t byte = 0;
    KVBLEND_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (i >= columns) break;
      const uint32_t code = CodeOfValue(in[row * p.in.row_stride + i], scales[i], p.encoding);
      if (p.encoding != KvEncoding::kInt4) {
        codes[col + i] = static_cast<unsigned char>(code);
      } else {
        byte |= code << (4 * i);
      }
    }
    if (p.encoding == KvEncoding::kInt4) codes[col / 2] = static_cast<unsigned char>(byte);
  }
}

// V: a warp takes one group of columns of one row.
KVBLEND_KERNEL(kThreads, 8) EncodeValuesKernel(EncodeParams p) {
  const int64_t group = int64_t{BlockX()} * (kThreads / kWarpSize) + Warp();
  const int64_t row = group / p.scale_cols, group_col = group - row * p.scale_cols;
  const bool in_matrix = row < p.rows;  // of the whole warp
  const int64_t col = group_col * kGroup + Lane();
  const bool valid = in_matrix && col < p.cols;
  const float* in = static_cast<const float*>(p.in.data) + row * p.in.row_stride;
  // Columns that are not there stand for the first one, which changes no range.
  float value = 0;
  if (in_matrix) value = in[valid ? col : group_col * kGroup];
  const bool finite = AllLanes(IsFinite(value));
  // The first of equal values stays, as in the reference: zeros have signs.
  float low = value, high = value;
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const float other_low = Shuffle(low, Lane() + delta), other_high = Shuffle(high, Lane() + delta);
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
  }
  const Scale scale = ScaleOfRange(finite, Shuffle(low, 0), Shuffle(high, 0), p.encoding);
  if (in_matrix && Lane() == 0) StoreScale(p, group, scale);
  const uint32_t code = valid ? CodeOfValue(value, scale, p.encoding) : 0;
  const uint32_t next = Shuffle(code, Lane() + 1);
  if (!valid) return;
  unsigned char* codes = p.out + p.codes + row * p.code_row_bytes;
  if (p.encoding != KvEncoding::kInt4) {
    codes[col] = static_cast<unsigned char>(code);
  } else if (Lane() % 2 == 0) {
    codes[col / 2] = static_cast<unsigned char>(code | next << 4);
  }
}

}  // namespace

LaunchError LaunchEncodeKv(StreamHandle stream, ConstMatrixView in, MutableKvSectionView out) {
  const KvSectionLayout layout = out.layout();
  if (!IsQuantized(out.encoding)) {
    return LaunchConvert(stream, in, {out.data, DenseType(out.encoding), out.rows, out.cols, out.cols});
  }
  const EncodeParams params{.in = in,
                            .out = static_cast<unsigned char*>(out.data),
                            .rows = out.rows,
                            .cols = out.cols,
                            .scale_cols = layout.scale_cols,
                            .steps = layout.steps,
                            .codes = layout.codes,
                            .code_row_bytes = layout.code_row_bytes,
                            .encoding = out.encoding};
  if (out.part == KvPart::kKey) {
    return Launch<EncodeKeysKernel>(
        stream,
        {.blocks_x = CeilDiv(out.cols, 2 * kThreads), .blocks_y = layout.scale_rows, .threads = kThreads},
        params);
  }
  return Launch<EncodeValuesKernel>(
      stream,
      {.blocks_x = CeilDiv(layout.scale_rows * layout.scale_cols, kThreads / kWarpSize), .threads = kThreads},
      params);
}

}  // namespace kvblend::kernels::cuda
