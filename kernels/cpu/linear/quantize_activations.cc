// Activations as codes of 8 or 16 bits, as terms of the latter, and as asymmetric codes (code_products.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/quantize_activations.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>

#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/machine/tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

template <class Code>
constexpr float kLargestCode = static_cast<float>(kLargestRowCode<Code>);
constexpr size_t kGroupLanes = 16;  // divides every group

// The step of a group's codes. `not_finite`: as in Magnitude.
template <class Code, class D>
HWY_INLINE hn::Vec<D> StepOf(D d, hn::Vec<D> largest, hn::Vec<D> not_finite) {
  return hn::Add(hn::Mul(largest, hn::Set(d, 1.0f / kLargestCode<Code>)), not_finite);
}

// Codes per unit; none where there is nothing, or nothing finite, to encode.
template <class Code, class D>
HWY_INLINE hn::Vec<D> InverseOf(D d, hn::Vec<D> largest, hn::Vec<D> not_finite) {
  const auto encodable =
      hn::And(hn::Ge(largest, hn::Set(d, kSmallestCoded)), hn::Eq(not_finite, hn::Zero(d)));
  const auto inverse =
      hn::Div(hn::Set(d, kLargestCode<Code>), hn::IfThenElse(encodable, largest, hn::Set(d, 1.0f)));
  return hn::IfThenElseZero(encodable, inverse);
}

// Brings codes into the order of words (code_products.h). Eight at a time, as AVX2 has stored them: a load
// that spans two stores waits until both are in the cache.
HWY_INLINE void OrderAsWords(int8_t* codes, int64_t group) {
  alignas(8) static constexpr uint8_t kOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int64_t j = 0; j < group; j += 8) {
    auto* eight = reinterpret_cast<uint8_t*>(codes + j);
#if HWY_TARGET == HWY_SCALAR
    uint8_t ordered[8];
    for (int i = 0; i < 8; ++i) ordered[i] = eight[kOrder[i]];
    std::copy_n(ordered, 8, eight);
#else
    const hn::FixedTag<uint8_t, 8> d;
    hn::StoreU(hn::TableLookupBytes(hn::LoadU(d, eight), hn::Load(d, kOrder)), d, eight);
#endif
  }
}

// The terms of a group's codes, in the order of words.
template <class D32>
HWY_INLINE void StoreTerms(D32, hn::Vec<D32> code, int64_t index, int8_t* high, int8_t* low) {
  const hn::RebindToFloat<D32> d;
  const hn::Rebind<int8_t, D32> d8;
  // The nearest multiple: what is left is at most 127 in magnitude.
  const auto upper =
      hn::NearestInt(hn::Mul(hn::ConvertTo(d, code), hn::Set(d, 1.0f / static_cast<float>(kTermBase))));
  const auto lower = hn::Sub(code, hn::Sub(hn::ShiftLeft<8>(upper), upper));
  static_assert(kTermBase == 255);
  hn::StoreU(hn::DemoteTo(d8, upper), d8, high + index);
  hn::StoreU(hn::DemoteTo(d8, lower), d8, low + index);
}
void JoinTerms(int8_t* high, int8_t* low, int64_t group, CodeTerms* out) {
  OrderAsWords(high, group);
  OrderAsWords(low, group);
  for (int64_t i = 0; i < group; i += kCodesPerWord) {
    std::copy_n(high + i, kCodesPerWord, out[i / kCodesPerWord].high);
    std::copy_n(low + i, kCodesPerWord, out[i / kCodesPerWord].low);
  }
}

// One group, of whole vectors.
template <DataType kType, class Code>
HWY_INLINE void QuantizeGroupOf(const void* x, int64_t i, int64_t group, Code* codes, float* step,
                                float* sum) {
  constexpr bool kTerms = std::is_same_v<Code, CodeTerms>;
  using Stored =
      std::conditional_t<kTerms, int8_t, std::conditional_t<std::is_same_v<Code, WideCode>, int16_t, Code>>;
  [[maybe_unused]] alignas(64) int8_t high[kChunkInputs], low[kChunkInputs];
  const hn::CappedTag<float, kGroupLanes> d;
  const hn::RebindToSigned<decltype(d)> d32;
  [[maybe_unused]] const hn::Rebind<Stored, decltype(d)> d_codes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Magnitude magnitude =
      MagnitudeOf<kType>(static_cast<const std::byte*>(x) + i * SizeOf(kType), static_cast<size_t>(group));
  const auto largest = hn::Set(d, magnitude.largest), not_finite = hn::Set(d, magnitude.not_finite);
  const auto inverse = InverseOf<Code>(d, largest, not_finite);
  auto total = hn::Zero(d32);
  for (int64_t j = 0; j < group; j += lanes) {
    const auto code = hn::NearestInt(hn::Mul(LoadF32<kType>(d, x, i + j), inverse));
    total = hn::Add(total, code);
    if constexpr (kTerms) {
      StoreTerms(d32, code, j, high, low);
    } else {
      hn::StoreU(hn::DemoteTo(d_codes, code), d_codes, reinterpret_cast<Stored*>(codes) + j);
    }
  }
  if constexpr (kTerms) JoinTerms(high, low, group, codes);
  if constexpr (std::is_same_v<Code, int8_t>) OrderAsWords(codes, group);
  *step = hn::GetLane(StepOf<Code>(d, largest, not_finite));
  *sum = *step * static_cast<float>(hn::GetLane(hn::SumOfLanes(d32, total)));
}

// The least and the most of half a group, and 0.
struct HalfRange {
  float least, most;
  float step() const {
    // One code less than there are: the zero point is rounded too. Divided first, as the difference might overflow.
    constexpr float kInverse = 1.0f / 254.0f;
    return most * kInverse - least * kInverse;
  }
};

template <DataType kType, class D>
HWY_INLINE HalfRange RangeOf(D d, const void* x, int64_t i, hn::Vec<D>& not_finite) {
  auto least = hn::Zero(d), most = hn::Zero(d);
  for (int64_t j = 0; j < AsymmetricGroup::kHalfInputs; j += static_cast<int64_t>(hn::Lanes(d))) {
    const auto v = LoadF32<kType>(d, x, i + j);
    least = hn::Min(least, v);
    most = hn::Max(most, v);
    not_finite = hn::MulAdd(v, hn::Zero(d), not_finite);
  }
  return {hn::GetLane(hn::MinOfLanes(d, least)), hn::GetLane(hn::MaxOfLanes(d, most))};
}

template <DataType kType>
HWY_INLINE void QuantizeGroupOf(const void* x, int64_t i, int64_t /*group*/, AsymmetricGroup* out,
                                float* step, float* sum) {
  constexpr int64_t kHalf = AsymmetricGroup::kHalfInputs;
  const hn::CappedTag<float, kGroupLanes> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d_codes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto not_finite = hn::Zero(d);
  const HalfRange ranges[2] = {RangeOf<kType>(d, x, i, not_finite),
                               RangeOf<kType>(d, x, i + kHalf, not_finite)};
  const float largest = std::max(ranges[0].step(), ranges[1].step()),
              bad = hn::GetLane(hn::SumOfLanes(d, not_finite)),
              unit = largest * (1.0f / AsymmetricGroup::kLargestMultiple);
  *out = {};
  *step = unit + bad;
  *sum = 0.0f;
  if (!(largest >= kSmallestCoded) || bad != 0.0f) return;
  int32_t total = 0;
  for (int half = 0; half < 2; ++half) {
    const float wanted = std::ceil(ranges[half].step() / unit);
    const auto multiple =
        static_cast<int32_t>(std::clamp(wanted, 1.0f, static_cast<float>(AsymmetricGroup::kLargestMultiple)));
    const float inverse = 1.0f / (static_cast<float>(multiple) * unit);
    const int32_t zero_point = static_cast<int32_t>(std::nearbyint(-ranges[half].least * inverse)) - 128;
    auto codes_total = hn::Zero(d32);
    for (int64_t j = 0; j < kHalf; j += lanes) {
      const auto steps =
          hn::NearestInt(hn::Mul(LoadF32<kType>(d, x, i + half * kHalf + j), hn::Set(d, inverse)));
      codes_total = hn::Add(codes_total, steps);
      hn::StoreU(hn::DemoteTo(d_codes, hn::Add(steps, hn::Set(d32, zero_point))), d_codes,
                 out->codes + half * kHalf + j);
    }
    total += multiple * hn::GetLane(hn::SumOfLanes(d32, codes_total));
    out->multiples[half][0] = out->multiples[half][1] = static_cast<int16_t>(multiple);
    out->zeros[half] = static_cast<int16_t>(-multiple * zero_point);
  }
  OrderAsWords(out->codes, AsymmetricGroup::kInputs);
  *sum = unit * static_cast<float>(total);
}

template <DataType kType, class Code>
void QuantizeActivationsOf(const void* x, int64_t n, const CodedRows<Code>& out) {
  const int64_t group = out.group, whole = n / group, stride = out.group_stride(), scales = out.tile_rows;
  for (int64_t g = 0; g < whole; ++g) {
    QuantizeGroupOf<kType>(x, g * group, group, out.codes + g * stride, out.steps + g * scales,
                           out.sums + g * scales);
  }
  // Of the last group, and zeros.
  float rest[std::is_same_v<Code, WideCode> ? kMostWideInputs : kChunkInputs] = {};
  const OneF32 one;
  for (int64_t i = whole * group; i < n; ++i) {
    rest[i - whole * group] = hn::GetLane(LoadF32<kType>(one, x, i));
  }
  for (int64_t g = whole; g < out.groups(); ++g) {
    QuantizeGroupOf<DataType::kF32>(rest, 0, group, out.codes + g * stride, out.steps + g * scales,
                                    out.sums + g * scales);
    std::fill(std::begin(rest), std::end(rest), 0.0f);
  }
}

void QuantizeBytesImpl(const void* x, DataType dtype, int64_t n, const RowCodes& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}
void QuantizePairsImpl(const void* x, DataType dtype, int64_t n, const RowPairs& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}
void QuantizeTermsImpl(const void* x, DataType dtype, int64_t n, const RowTerms& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}
void QuantizeWideImpl(const void* x, DataType dtype, int64_t n, const WideRows& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}
void QuantizeAsymmetricImpl(const void* x, DataType dtype, int64_t n, const AsymmetricRows& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantizeBytesImpl);
HWY_EXPORT(QuantizePairsImpl);
HWY_EXPORT(QuantizeTermsImpl);
HWY_EXPORT(QuantizeWideImpl);
HWY_EXPORT(QuantizeAsymmetricImpl);

void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowCodes& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeBytesImpl)(x, dtype, n, out);
}
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowPairs& out) {
  HWY_DYNAMIC_DISPATCH(QuantizePairsImpl)(x, dtype, n, out);
}
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowTerms& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeTermsImpl)(x, dtype, n, out);
}
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const WideRows& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeWideImpl)(x, dtype, n, out);
}
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const AsymmetricRows& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeAsymmetricImpl)(x, dtype, n, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
