// Reading stored KV on the device: the definition of kernels/host/kv_codec.h, one value or eight at a time.
// For .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/e4m3.h"
#include "kernels/cuda/device/elements.h"

namespace kvblend::kernels::cuda {

KVBLEND_DEVICE DataType DenseTypeOf(KvEncoding encoding) {
  if (encoding == KvEncoding::kBF16) return DataType::kBF16;
  return encoding == KvEncoding::kF16 ? DataType::kF16 : DataType::kF32;
}

KVBLEND_DEVICE float Dequantize(float offset, float step, uint32_t code) {
  return AddRn(offset, MulRn(step, static_cast<float>(code)));
}

/// The offsets or steps of kWidth columns.
template <int kWidth>
KVBLEND_DEVICE void LoadScales(const KvSource& source, const unsigned char* plane, int64_t scale,
                               float (&scales)[kWidth]) {
  if (kWidth == 8 && source.per_channel) {
    LoadValues(plane, DataType::kBF16, scale, scales);
  } else {
    const float one = LoadValue(plane, DataType::kBF16, scale);
    for (int i = 0; i < kWidth; ++i) scales[i] = one;
  }
}

/// Values of columns [col, col + kWidth) of a row; kWidth is 1, or 8 where col is a multiple of 8 and
/// VectorisesSource holds.
template <int kWidth>
KVBLEND_DEVICE void LoadKv(const KvSource& source, int64_t row, int64_t col, float (&values)[kWidth]) {
  if (!IsQuantized(source.encoding)) {
    LoadValues(source.data, DenseTypeOf(source.encoding), row * source.row_stride + col, values);
    return;
  }
  const int64_t scale = source.per_channel ? row / kKvGroup * source.scale_cols + col
                                           : row * source.scale_cols + col / kKvGroup;
  float offset[kWidth], step[kWidth];
  LoadScales(source, source.data + source.steps, scale, step);
  const unsigned char* codes = source.data + source.codes + row * source.row_stride;
  if (source.encoding == KvEncoding::kFp8) {
    if constexpr (kWidth == 8) {
      const auto* words = reinterpret_cast<const uint32_t*>(codes + col);
      for (int i = 0; i < 8; i += 2) {
        FromE4M3Pair(words[i / 4] >> (i % 4 * 8), values[i], values[i + 1]);
      }
    } else {
      values[0] = FromE4M3(codes[col]);
    }
    for (int i = 0; i < kWidth; ++i) values[i] = MulRn(step[i], values[i]);
    return;
  }
  LoadScales(source, source.data, scale, offset);
  if (source.encoding == KvEncoding::kInt8) {
    if constexpr (kWidth == 8) {
      const auto* words = reinterpret_cast<const uint32_t*>(codes + col);
      const uint32_t low = words[0], high = words[1];
      for (int i = 0; i < 8; ++i) {
        values[i] = Dequantize(offset[i], step[i], (i < 4 ? low : high) >> (i % 4 * 8) & 255);
      }
    } else {
      values[0] = Dequantize(offset[0], step[0], codes[col]);
    }
  } else {
    if constexpr (kWidth == 8) {
      const uint32_t word = *reinterpret_cast<const uint32_t*>(codes + col / 2);
      for (int i = 0; i < 8; ++i) values[i] = Dequantize(offset[i], step[i], word >> (4 * i) & 15);
    } else {
      values[0] = Dequantize(offset[0], step[0], codes[col / 2] >> (col % 2 * 4) & 15u);
    }
  }
}

/// Host code: whether groups of eight columns lie at multiples of their size in every row of [rows, cols].
inline bool VectorisesSource(const KvSource& source, int64_t cols) {
  return reinterpret_cast<uintptr_t>(source.data) % 16 == 0 && cols % 16 == 0 && source.row_stride % 8 == 0;
}

}  // namespace kvblend::kernels::cuda
