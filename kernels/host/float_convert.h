// bf16 and f16 as bit patterns, converted one value at a time: the definition that vectorised code is held
// against. Round to nearest, ties to even; infinities stay, NaN stays NaN (quiet); f16 overflows to infinity
// and keeps subnormals. E4M3 likewise, whose largest value takes the place of infinity
// (kernels/kv_section.h).
//
// What is called for every element is always inlined: without, a test compiled without optimisation may be
// where the linker takes the one copy from that the reference backend then calls, and is slow with.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/base/attributes.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

ABSL_ATTRIBUTE_ALWAYS_INLINE inline float Bf16ToF32(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

inline uint16_t F32ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

inline float F16ToF32(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1Fu;
  const uint32_t mantissa = half & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31)
    return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t F32ToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // rounds to 65520 or more
  if (magnitude < 0x38800000u) {
    // Below 2^-14, adding 0.5 leaves the value's multiple of 2^-24 in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

inline float E4M3ToF32(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if (exponent == 15 && mantissa == 7) magnitude = std::numeric_limits<float>::quiet_NaN();
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

inline uint8_t F32ToE4M3(float value) {
  if (std::isnan(value)) return 0x7F;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  // Values from 2^e on are 2^(e - 3) apart, those below 2^-6 as those above.
  const int exponent = std::max(magnitude > 0 ? std::ilogb(magnitude) : -6, -6);
  const int count = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));  // 0 .. 16
  const int code = (exponent + 7) * 8 + count - 8;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

/// Element `index` of an array of `dtype`.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline float LoadElement(const void* data, DataType dtype, int64_t index) {
  if (dtype == DataType::kF32) return static_cast<const float*>(data)[index];
  const uint16_t bits = static_cast<const uint16_t*>(data)[index];
  return dtype == DataType::kBF16 ? Bf16ToF32(bits) : F16ToF32(bits);
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void StoreElement(void* data, DataType dtype, int64_t index,
                                                      float value) {
  if (dtype == DataType::kF32) {
    static_cast<float*>(data)[index] = value;
  } else {
    static_cast<uint16_t*>(data)[index] = dtype == DataType::kBF16 ? F32ToBf16(value) : F32ToF16(value);
  }
}

}  // namespace kvblend::kernels
