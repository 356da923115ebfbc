// fp8 sections: codes, and back.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/fp8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/fp8-inl.h"
// clang-format on
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

template <class D>
HWY_INLINE void StoreE4M3(D d, hn::Vec<D> scaled, uint8_t* codes) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToSigned<D> d32;  // below 2^8, so the saturating conversion is exact
  hn::StoreU(hn::DemoteTo(d8, hn::BitCast(d32, F32ToE4M3(d, scaled))), d8, codes);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadE4M3(D d, const uint8_t* codes) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToUnsigned<D> d32;
  return E4M3ToF32(d, hn::PromoteTo(d32, hn::LoadU(d8, codes)));
}

void QuantizeRowFp8Impl(const float* x, const float* inverse_steps, int64_t n, uint8_t* codes) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    StoreE4M3(d, hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, inverse_steps + i)), codes + i);
  });
}

void QuantizeGroupFp8Impl(const float* x, float inverse_step, int64_t n, uint8_t* codes) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    StoreE4M3(d, hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse_step)), codes + i);
  });
}

void DequantizeRowFp8Impl(const uint8_t* codes, const uint16_t* steps, int64_t n, float* out) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(LoadF32<DataType::kBF16>(d, steps, i), LoadE4M3(d, codes + i)), d, out + i);
  });
}

void DequantizeGroupFp8Impl(const uint8_t* codes, float step, int64_t n, float* out) {
  ForEach(n, [&](auto d, size_t i)
                 HWY_ATTR { hn::StoreU(hn::Mul(hn::Set(d, step), LoadE4M3(d, codes + i)), d, out + i); });
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantizeRowFp8Impl);
HWY_EXPORT(QuantizeGroupFp8Impl);
HWY_EXPORT(DequantizeRowFp8Impl);
HWY_EXPORT(DequantizeGroupFp8Impl);

void QuantizeRowFp8(const float* x, const float* inverse_steps, int64_t n, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowFp8Impl)(x, inverse_steps, n, codes);
}

void QuantizeGroupFp8(const float* x, float inverse_step, int64_t n, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeGroupFp8Impl)(x, inverse_step, n, codes);
}

void DequantizeRowFp8(const uint8_t* codes, const uint16_t* steps, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeRowFp8Impl)(codes, steps, n, out);
}

void DequantizeGroupFp8(const uint8_t* codes, float step, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeGroupFp8Impl)(codes, step, n, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
