// Quantized KV: ranges, codes, and back.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/quantize.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// 0 for finite values, NaN for others: their sum tells whether all were finite.
template <class D>
HWY_INLINE hn::Vec<D> NanUnlessFinite(D d, hn::Vec<D> v) {
  return hn::Mul(v, hn::Zero(d));
}

void ColumnRangesImpl(const float* in, int64_t row_stride, int64_t rows, int64_t cols, float* low,
                      float* high) {
  ForEach(cols, [&](auto d, size_t i) HWY_ATTR {
    auto smallest = hn::LoadU(d, in + i);
    auto largest = smallest;
    auto finite = NanUnlessFinite(d, smallest);
    for (int64_t row = 1; row < rows; ++row) {
      const auto v = hn::LoadU(d, in + row * row_stride + i);
      smallest = hn::Min(smallest, v);
      largest = hn::Max(largest, v);
      finite = hn::Add(finite, NanUnlessFinite(d, v));
    }
    hn::StoreU(hn::Add(smallest, finite), d, low + i);
    hn::StoreU(largest, d, high + i);
  });
}

void RowRangeImpl(const float* in, int64_t n, float* low, float* high) {
  const FullF32 d;
  auto smallest = hn::Set(d, in[0]);
  auto largest = smallest;
  auto finite = NanUnlessFinite(d, smallest);
  size_t i = 0;
  const size_t count = static_cast<size_t>(n);
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, in + i);
    smallest = hn::Min(smallest, v);
    largest = hn::Max(largest, v);
    finite = hn::Add(finite, NanUnlessFinite(d, v));
  }
  float min = hn::GetLane(hn::MinOfLanes(d, smallest)), max = hn::GetLane(hn::MaxOfLanes(d, largest));
  float not_finite = hn::GetLane(hn::SumOfLanes(d, finite));
  for (; i < count; ++i) {
    min = std::min(min, in[i]);
    max = std::max(max, in[i]);
    not_finite += in[i] * 0.0f;
  }
  *low = min + not_finite;
  *high = max;
}

template <class D>
HWY_INLINE void StoreCodes(D d, hn::Vec<D> scaled, float max_code, uint8_t* codes) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToSigned<D> d32;
  const auto rounded = hn::Round(scaled);
  // The comparison fails for NaN.
  const auto clamped =
      hn::IfThenElseZero(hn::Gt(rounded, hn::Zero(d)), hn::Min(rounded, hn::Set(d, max_code)));
  hn::StoreU(hn::DemoteTo(d8, hn::ConvertTo(d32, clamped)), d8, codes);
}

void QuantizeRowImpl(const float* x, const float* offsets, const float* inverse_steps, float max_code,
                     int64_t n, uint8_t* codes) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    const auto shifted = hn::Sub(hn::LoadU(d, x + i), hn::LoadU(d, offsets + i));
    StoreCodes(d, hn::Mul(shifted, hn::LoadU(d, inverse_steps + i)), max_code, codes + i);
  });
}

void QuantizeGroupImpl(const float* x, float offset, float inverse_step, float max_code, int64_t n,
                       uint8_t* codes) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    const auto shifted = hn::Sub(hn::LoadU(d, x + i), hn::Set(d, offset));
    StoreCodes(d, hn::Mul(shifted, hn::Set(d, inverse_step)), max_code, codes + i);
  });
}

template <class D>
HWY_INLINE hn::Vec<D> LoadCodes(D d, const uint8_t* codes) {
  const hn::Rebind<uint8_t, D> d8;
  const hn::RebindToSigned<D> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes)));
}

void DequantizeRowImpl(const uint8_t* codes, const uint16_t* offsets, const uint16_t* steps, int64_t n,
                       float* out) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(LoadF32<DataType::kBF16>(d, steps, i), LoadCodes(d, codes + i),
                          LoadF32<DataType::kBF16>(d, offsets, i)),
               d, out + i);
  });
}

void DequantizeGroupImpl(const uint8_t* codes, float offset, float step, int64_t n, float* out) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::Set(d, step), LoadCodes(d, codes + i), hn::Set(d, offset)), d, out + i);
  });
}

void UnpackNibblesImpl(const uint8_t* packed, int64_t n, uint8_t* codes) {
  const size_t pairs = static_cast<size_t>(n) / 2;
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint16_t, decltype(d)> d16;
  const auto mask = hn::Set(d, uint8_t{15});
  const size_t lanes = hn::Lanes(d);
  for (; i + lanes <= pairs; i += lanes) {
    const auto v = hn::LoadU(d, packed + i);
    // There is no shift of bytes: bits that come over from the neighbour are masked away.
    const auto high = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(d16, v))), mask);
    hn::StoreInterleaved2(hn::And(v, mask), high, d, codes + 2 * i);
  }
#endif
  for (; i < pairs; ++i) {
    codes[2 * i] = packed[i] & 15;
    codes[2 * i + 1] = packed[i] >> 4;
  }
  if (n % 2 != 0) codes[n - 1] = packed[pairs] & 15;
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(ColumnRangesImpl);
HWY_EXPORT(RowRangeImpl);
HWY_EXPORT(QuantizeRowImpl);
HWY_EXPORT(QuantizeGroupImpl);
HWY_EXPORT(DequantizeRowImpl);
HWY_EXPORT(DequantizeGroupImpl);
HWY_EXPORT(UnpackNibblesImpl);

void ColumnRanges(const float* in, int64_t row_stride, int64_t rows, int64_t cols, float* low, float* high) {
  HWY_DYNAMIC_DISPATCH(ColumnRangesImpl)(in, row_stride, rows, cols, low, high);
}

void RowRange(const float* in, int64_t n, float* low, float* high) {
  HWY_DYNAMIC_DISPATCH(RowRangeImpl)(in, n, low, high);
}

void QuantizeRow(const float* x, const float* offsets, const float* inverse_steps, float max_code, int64_t n,
                 uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowImpl)(x, offsets, inverse_steps, max_code, n, codes);
}

void QuantizeGroup(const float* x, float offset, float inverse_step, float max_code, int64_t n,
                   uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(QuantizeGroupImpl)(x, offset, inverse_step, max_code, n, codes);
}

void DequantizeRow(const uint8_t* codes, const uint16_t* offsets, const uint16_t* steps, int64_t n,
                   float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeRowImpl)(codes, offsets, steps, n, out);
}

void DequantizeGroup(const uint8_t* codes, float offset, float step, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(DequantizeGroupImpl)(codes, offset, step, n, out);
}

// Once per chunk, so a plain loop will do.
void PackNibbles(const uint8_t* codes, int64_t n, uint8_t* packed) {
  for (int64_t i = 0; i + 1 < n; i += 2) packed[i / 2] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
  if (n % 2 != 0) packed[n / 2] = codes[n - 1];
}

void UnpackNibbles(const uint8_t* packed, int64_t n, uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(UnpackNibblesImpl)(packed, n, codes);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
