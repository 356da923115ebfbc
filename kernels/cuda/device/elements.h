// Device helpers that kernels share: elements of any dtype, one at a time or eight, and division by numbers
// that are known when a kernel is launched. For .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

KVBLEND_DEVICE float LoadValue(const void* data, DataType dtype, int64_t index) {
  if (dtype == DataType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DataType::kBF16 ? FromBf16(bits) : FromF16(bits);
}

KVBLEND_DEVICE void StoreValue(void* data, DataType dtype, int64_t index, float value) {
  if (dtype == DataType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = dtype == DataType::kBF16 ? ToBf16(value) : ToF16(value);
  }
}

KVBLEND_DEVICE uint32_t Pack(DataType dtype, float low, float high) {
  return dtype == DataType::kBF16 ? PackBf16(low, high) : PackF16(low, high);
}

KVBLEND_DEVICE void Unpack16(DataType dtype, const Bytes16& bytes, float (&values)[8]) {
  for (int i = 0; i < 4; ++i) {
    const auto low = static_cast<uint16_t>(bytes.words[i]),
               high = static_cast<uint16_t>(bytes.words[i] >> 16);
    values[2 * i] = dtype == DataType::kBF16 ? FromBf16(low) : FromF16(low);
    values[2 * i + 1] = dtype == DataType::kBF16 ? FromBf16(high) : FromF16(high);
  }
}

// kWidth consecutive elements, 1 or 8; eight of them start at a multiple of 16 bytes.

template <int kWidth>
KVBLEND_DEVICE void LoadValues(const void* data, DataType dtype, int64_t index, float (&values)[kWidth]) {
  static_assert(kWidth == 1 || kWidth == 8);
  if constexpr (kWidth == 1) {
    values[0] = LoadValue(data, dtype, index);
  } else if (dtype == DataType::kF32) {
    const float* from = static_cast<const float*>(data) + index;
    const Bytes16 low = Load128(from), high = Load128(from + 4);
    for (int i = 0; i < 4; ++i) {
      values[i] = FloatFromBits(low.words[i]);
      values[4 + i] = FloatFromBits(high.words[i]);
    }
  } else {
    Unpack16(dtype, Load128(static_cast<const uint16_t*>(data) + index), values);
  }
}

template <int kWidth>
KVBLEND_DEVICE void StoreValues(void* data, DataType dtype, int64_t index, const float (&values)[kWidth]) {
  static_assert(kWidth == 1 || kWidth == 8);
  if constexpr (kWidth == 1) {
    StoreValue(data, dtype, index, values[0]);
  } else if (dtype == DataType::kF32) {
    float* to = static_cast<float*>(data) + index;
    Store128(to, {{FloatBits(values[0]), FloatBits(values[1]), FloatBits(values[2]), FloatBits(values[3])}});
    Store128(to + 4,
             {{FloatBits(values[4]), FloatBits(values[5]), FloatBits(values[6]), FloatBits(values[7])}});
  } else {
    Store128(static_cast<uint16_t*>(data) + index,
             {{Pack(dtype, values[0], values[1]), Pack(dtype, values[2], values[3]),
               Pack(dtype, values[4], values[5]), Pack(dtype, values[6], values[7])}});
  }
}

/// cap * tanh(value / cap); `inverse`: 1 / cap
KVBLEND_DEVICE float SoftCapped(float value, float cap, float inverse) { return cap * Tanh(value * inverse); }

KVBLEND_DEVICE int Divide(FastDivisor divisor, int value) {
  if (divisor.multiplier == 0) return value;
  return static_cast<int>(MulHigh(static_cast<uint32_t>(value), divisor.multiplier) >> divisor.shift);
}

}  // namespace kvblend::kernels::cuda
