// Heads of int8 pages: to codes, and back.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/page_codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/host/page_codec.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

void QuantizeGroupOf(const float* x, size_t n, int8_t* codes, uint16_t* step) {
  const Magnitude magnitude = MagnitudeOf<DataType::kF32>(x, n);
  *step = CeilToBf16(magnitude.largest / kLargestPageCode + magnitude.not_finite);
  if (magnitude.not_finite != 0) {  // NaN
    std::fill_n(codes, n, int8_t{0});
    return;
  }
  const float inverse = InverseStep(*step);
  ForEach(n, [&](auto d, size_t j) HWY_ATTR {
    const hn::Rebind<int8_t, decltype(d)> d8;
    const hn::RebindToSigned<decltype(d)> d32;
    // Steps round up, so that no code passes 127; a subnormal one may have no inverse.
    const auto code = hn::NearestInt(hn::Mul(hn::LoadU(d, x + j), hn::Set(d, inverse)));
    const auto limited = hn::Max(hn::Min(code, hn::Set(d32, 127)), hn::Set(d32, -127));
    hn::StoreU(hn::DemoteTo(d8, limited), d8, codes + j);
  });
}

void QuantizeHeadImpl(const float* x, int64_t head_dim, int8_t* codes, uint16_t* steps) {
  for (int64_t d = 0; d < head_dim; d += kPageGroup) {
    QuantizeGroupOf(x + d, static_cast<size_t>(std::min(kPageGroup, head_dim - d)), codes + d, steps++);
  }
}

#if KVBLEND_BF16_WORDS
// A group of 32 codes as one vector.
HWY_INLINE void DequantizeGroupToBf16(const int8_t* codes, float step, uint16_t* out) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::RebindToSigned<decltype(d)> d32;
  const auto values = [&](int64_t i) KVBLEND_BF16_ATTR {
    return hn::Mul(hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i))), hn::Set(d, step));
  };
  _mm512_storeu_si512(out, (__m512i)_mm512_cvtne2ps_pbh(values(16).raw, values(0).raw));
}

void DequantizeHeadsToBf16(const int8_t* codes, const uint16_t* steps, int64_t heads, int64_t head_dim,
                           uint16_t* out, const int8_t* next) {
  static_assert(kPageGroup == 32);
  for (int64_t i = 0; i < heads * head_dim; i += kPageGroup) {
    if (next != nullptr && i % 64 == 0) hwy::Prefetch(next + i);
    DequantizeGroupToBf16(codes + i, Bf16ToF32(steps[i / kPageGroup]), out + i);
  }
}
#endif

template <DataType kType>
void DequantizeHeadsOf(const int8_t* codes, const uint16_t* steps, int64_t heads, int64_t head_dim, void* out,
                       const int8_t* next) {
  for (int64_t head = 0; head < heads; ++head) {
    if (next != nullptr) {
      for (int64_t byte = 0; byte < head_dim; byte += 64) hwy::Prefetch(next + head * head_dim + byte);
    }
    for (int64_t begin = 0; begin < head_dim; begin += kPageGroup) {
      const float step = Bf16ToF32(*steps++);
      const int64_t first = head * head_dim + begin;
      ForEach(std::min(kPageGroup, head_dim - begin), [&](auto d, size_t i) HWY_ATTR {
        const hn::Rebind<int8_t, decltype(d)> d8;
        const hn::RebindToSigned<decltype(d)> d32;
        const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + first + i)));
        StoreF32<kType>(d, hn::Mul(code, hn::Set(d, step)), out, first + i);
      });
    }
  }
}

void DequantizeHeadsImpl(const int8_t* codes, const uint16_t* steps, int64_t heads, int64_t head_dim,
                         DataType out_dtype, void* out, const int8_t* next) {
#if KVBLEND_BF16_WORDS
  if (out_dtype == DataType::kBF16 && head_dim % kPageGroup == 0 && HasBf16()) {
    return DequantizeHeadsToBf16(codes, steps, heads, head_dim, static_cast<uint16_t*>(out), next);
  }
#endif
  KVBLEND_FOR_DTYPE(out_dtype, DequantizeHeadsOf<kType>(codes, steps, heads, head_dim, out, next));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantizeHeadImpl);
HWY_EXPORT(DequantizeHeadsImpl);

void QuantizeHead(const float* x, int64_t head_dim, int8_t* codes, uint16_t* steps) {
  HWY_DYNAMIC_DISPATCH(QuantizeHeadImpl)(x, head_dim, codes, steps);
}
void DequantizeHeads(const int8_t* codes, const uint16_t* steps, int64_t heads, int64_t head_dim,
                     DataType out_dtype, void* out, const int8_t* next) {
  HWY_DYNAMIC_DISPATCH(DequantizeHeadsImpl)(codes, steps, heads, head_dim, out_dtype, out, next);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
