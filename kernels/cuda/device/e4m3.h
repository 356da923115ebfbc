// E4M3 (kernels/kv_section.h) from and to f32: instructions of sm_89 and newer, arithmetic elsewhere, and the
// same results. For .cu files.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace kvblend::kernels::cuda {

/// The code in the low 8 bits; the others are 0.
KVBLEND_DEVICE float FromE4M3(uint32_t code) {
#if KVBLEND_HARDWARE_E4M3
  return FromF16(static_cast<uint16_t>(E4M3PairToF16(static_cast<uint16_t>(code))));
#else
  // The upper bits of an f16, whose exponent's bias is larger by 8: subnormals are subnormals.
  const float scaled = FromF16(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7Fu) << 7));
  return (code & 0x7Fu) == 0x7Fu ? FloatFromBits(0x7FC00000u) : MulRn(scaled, 256.0f);
#endif
}

/// The codes in the low 16 bits; the others are not looked at.
KVBLEND_DEVICE void FromE4M3Pair(uint32_t codes, float& low, float& high) {
#if KVBLEND_HARDWARE_E4M3
  const uint32_t halves = E4M3PairToF16(static_cast<uint16_t>(codes));
  low = FromF16(static_cast<uint16_t>(halves));
  high = FromF16(static_cast<uint16_t>(halves >> 16));
#else
  low = FromE4M3(codes & 0xFFu);
  high = FromE4M3(codes >> 8 & 0xFFu);
#endif
}

/// To nearest even, at most 448; 0x7F for NaN.
KVBLEND_DEVICE uint32_t ToE4M3(float value) {
#if KVBLEND_HARDWARE_E4M3
  return F32PairToE4M3(value, 0.0f);
#else
  const uint32_t all_bits = FloatBits(value), sign = all_bits >> 24 & 0x80u;
  uint32_t bits = all_bits & 0x7FFFFFFFu;
  if (bits > 0x7F800000u) return 0x7Fu;
  constexpr uint32_t kMax = 0x43E00000u, kSmallestNormal = 0x3C800000u;  // 448, 2^-6
  if (bits > kMax) bits = kMax;
  if (bits < kSmallestNormal) {
    constexpr uint32_t kBase = 0x46800000u;  // 2^14, from where on f32 are 2^-9 apart
    return sign | (FloatBits(AddRn(FloatFromBits(bits), FloatFromBits(kBase))) - kBase);
  }
  return sign | (((bits + 0x7FFFFu + (bits >> 20 & 1u)) >> 20) - (120u << 3));
#endif
}

}  // namespace kvblend::kernels::cuda
