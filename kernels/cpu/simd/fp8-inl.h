// E4M3 (kernels/kv_section.h) from and to f32; included once per instruction set, like simd-inl.h.
#include <array>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"

// Per-target include guard.
#if defined(KVBLEND_KERNELS_CPU_SIMD_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVBLEND_KERNELS_CPU_SIMD_FP8_INL_H_
#undef KVBLEND_KERNELS_CPU_SIMD_FP8_INL_H_
#else
#define KVBLEND_KERNELS_CPU_SIMD_FP8_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Codes in the low 8 bits of each lane; what is above is not looked at.
template <class D>
HWY_INLINE hn::Vec<D> E4M3ToF32(D d, hn::Vec<hn::RebindToUnsigned<D>> codes) {
  const hn::RebindToUnsigned<D> d32;
  // 3 bits of mantissa and 4 of exponent where f32 has them; biases are 120 apart.
  const auto bits =
      hn::Add(hn::And(hn::ShiftLeft<20>(codes), hn::Set(d32, 0x07F00000u)), hn::Set(d32, 120u << 23));
  const auto as_normal = hn::BitCast(d, bits);
  // A subnormal m * 2^-9 was read as v = 2^-7 + m * 2^-10. 2 v - 2^-6 is what it should be, and less than v.
  // For all that is 2^-6 or more v is the smaller one.
  const auto value = hn::Min(as_normal, hn::MulAdd(as_normal, hn::Set(d, 2.0f), hn::Set(d, -0.015625f)));
  const auto nan = hn::BitCast(d, hn::Set(d32, 0x7FC00000u));
  const auto magnitude = hn::IfThenElse(hn::Gt(value, hn::Set(d, 448.0f)), nan, value);
  return hn::CopySignToAbs(magnitude, hn::BitCast(d, hn::ShiftLeft<24>(codes)));
}

#if KVBLEND_BF16_WORDS
// 32 codes in bf16, which holds every E4M3 exactly.
HWY_INLINE __m512i E4M3ToBf16(__m256i codes) {
  alignas(64) static constexpr auto kMagnitudes = [] {
    std::array<uint16_t, 128> bits{};
    for (unsigned code = 8; code < 127; ++code) bits[code] = static_cast<uint16_t>((code << 4) + (120 << 7));
    constexpr uint16_t kSubnormals[8] = {0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60};
    for (unsigned code = 0; code < 8; ++code) bits[code] = kSubnormals[code];
    bits[127] = 0x7FC0;
    return bits;
  }();
  const __m512i wide = _mm512_cvtepu8_epi16(codes);
  // A lookup takes 6 bits of a code.
  const __mmask32 upper = _mm512_test_epi16_mask(wide, _mm512_set1_epi16(0x40));
  const uint16_t* table = kMagnitudes.data();
  const __m512i of_lower =
      _mm512_permutex2var_epi16(_mm512_load_si512(table), wide, _mm512_load_si512(table + 32));
  const __m512i of_upper =
      _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), wide, _mm512_load_si512(table + 96));
  const __m512i magnitudes = _mm512_mask_blend_epi16(upper, of_lower, of_upper);
  const __m512i signs = _mm512_and_si512(_mm512_slli_epi16(wide, 8), _mm512_set1_epi16(-0x8000));
  return _mm512_or_si512(magnitudes, signs);
}
#endif

// To nearest even, at most 448; 0x7F for NaN.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> F32ToE4M3(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> d32;
  const auto magnitude = hn::Min(hn::Abs(v), hn::Set(d, 448.0f));  // of NaN: anything
  const auto bits = hn::BitCast(d32, magnitude);
  const auto odd = hn::And(hn::ShiftRight<20>(bits), hn::Set(d32, 1u));
  const auto normal = hn::Sub(hn::ShiftRight<20>(hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFFFu)), odd)),
                              hn::Set(d32, 120u << 3));
  // Below 2^-6: from 2^14 on, f32 are 2^-9 apart.
  const auto base = hn::Set(d, 16384.0f);
  const auto subnormal = hn::Sub(hn::BitCast(d32, hn::Add(magnitude, base)), hn::BitCast(d32, base));
  const auto is_normal = hn::RebindMask(d32, hn::Ge(magnitude, hn::Set(d, 0.015625f)));
  const auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(d32, v)), hn::Set(d32, 0x80u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), hn::Set(d32, 0x7Fu),
                        hn::Or(hn::IfThenElse(is_normal, normal, subnormal), sign));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
