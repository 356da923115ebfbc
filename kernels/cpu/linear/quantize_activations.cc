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
#include <cstring>
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

// --- asymmetric codes ---

// In vectors of several lanes a group's even inputs have every other lane, and its odd ones those between; with a single
// lane its halves come one after the other.
using HalvesTag = hn::CappedTag<float, 8>;
constexpr size_t kHalvesLanes = hn::MaxLanes(HalvesTag());
constexpr int64_t kVectorHalves = kHalvesLanes > 1 ? 2 : 1,
                  kVectorStride = kHalvesLanes > 1 ? kHalvesLanes : 2;

// In every lane what all lanes of its half come to.
template <class Op>
HWY_INLINE hn::Vec<HalvesTag> OfHalf([[maybe_unused]] HalvesTag d, hn::Vec<HalvesTag> v, Op op) {
#if HWY_TARGET == HWY_SCALAR
  return op(v, v);
#else
  v = op(v, hn::Shuffle1032(v));
  if constexpr (kHalvesLanes > 4) v = op(v, hn::ConcatLowerUpper(d, v, v));
  return v;
#endif
}

// What a group's halves are is kept in place of its codes until it is encoded, as four lanes that repeat both: the least, which
// is 0 or less, and behind it the steps that they want.
constexpr int64_t kRangeBytes = 4 * sizeof(float);
static_assert(2 * kRangeBytes <= sizeof(AsymmetricGroup::codes));

// half: the first that v has
template <class D>
HWY_INLINE void StoreHalves(D d, hn::Vec<D> v, [[maybe_unused]] int64_t half, int8_t* out) {
  auto* lanes = reinterpret_cast<float*>(out);
#if HWY_TARGET == HWY_SCALAR
  hn::StoreU(v, d, lanes + half);
#else
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<D> lower;
    hn::StoreU(hn::LowerHalf(lower, v), lower, lanes);
  } else {
    hn::StoreU(v, d, lanes);
  }
#endif
}
HWY_INLINE hn::Vec<HalvesTag> LoadHalves(const int8_t* from, [[maybe_unused]] int64_t half) {
  const auto* lanes = reinterpret_cast<const float*>(from);
#if HWY_TARGET == HWY_SCALAR
  return hn::LoadU(HalvesTag(), lanes + half);
#else
  return hn::LoadDup128(HalvesTag(), lanes);
#endif
}

template <DataType kType>
HWY_INLINE void FindRanges(const void* x, int64_t i, AsymmetricGroup* out, hn::Vec<HalvesTag>& largest_step,
                           hn::Vec<HalvesTag>& not_finite) {
  const HalvesTag d;
  for (int64_t half = 0; half < 2; half += kVectorHalves) {
    auto least = hn::Zero(d), most = hn::Zero(d);
    for (int64_t j = half; j < AsymmetricGroup::kInputs; j += kVectorStride) {
      const auto v = LoadF32<kType>(d, x, i + j);
      least = hn::Min(least, v);
      most = hn::Max(most, v);
      not_finite = hn::MulAdd(v, hn::Zero(d), not_finite);
    }
    least = OfHalf(d, least, [](auto a, auto b) { return hn::Min(a, b); });
    most = OfHalf(d, most, [](auto a, auto b) { return hn::Max(a, b); });
    // One code less than there are: the zero point is rounded too. Divided first, as the difference might overflow.
    const auto inverse = hn::Set(d, 1.0f / 254.0f);
    const auto steps = hn::Sub(hn::Mul(most, inverse), hn::Mul(least, inverse));
    largest_step = hn::Max(largest_step, steps);
    StoreHalves(d, least, half, out->codes);
    StoreHalves(d, steps, half, out->codes + kRangeBytes);
  }
}

// unit: the row's step. Returns the sum of the group's values, in such steps.
template <DataType kType>
HWY_INLINE float EncodeGroup(const void* x, int64_t i, float unit, AsymmetricGroup* out) {
  const HalvesTag d;
  const hn::RebindToSigned<HalvesTag> d32;
  const hn::Rebind<int8_t, HalvesTag> d_codes;
  hn::Vec<HalvesTag> leasts[2], wanted_steps[2];  // before codes take their place
  for (int64_t half = 0; half < 2; half += kVectorHalves) {
    leasts[half] = LoadHalves(out->codes, half);
    wanted_steps[half] = LoadHalves(out->codes + kRangeBytes, half);
  }
  int32_t sum = 0;
  for (int64_t half = 0; half < 2; half += kVectorHalves) {
    const auto least = leasts[half], steps = wanted_steps[half];
    const auto multiple = hn::Clamp(hn::Ceil(hn::Div(steps, hn::Set(d, unit))), hn::Set(d, 1.0f),
                                    hn::Set(d, static_cast<float>(AsymmetricGroup::kLargestMultiple)));
    const auto inverse = hn::Div(hn::Set(d, 1.0f), hn::Mul(multiple, hn::Set(d, unit)));
    const auto zero_point = hn::Sub(hn::NearestInt(hn::Neg(hn::Mul(least, inverse))), hn::Set(d32, 128));
    // Added to a number of small magnitude, 1.5 * 2^23 rounds it to a whole one and leaves that in the low bits.
    const auto magic = hn::Set(d, 12582912.0f);
    const auto offset = hn::Sub(zero_point, hn::BitCast(d32, magic));
    auto codes = hn::Zero(d32);
    for (int64_t j = half; j < AsymmetricGroup::kInputs; j += kVectorStride) {
      const auto rounded = hn::MulAdd(LoadF32<kType>(d, x, i + j), inverse, magic);
      const auto code = hn::Add(hn::BitCast(d32, rounded), offset);
      codes = hn::Add(codes, code);
      hn::StoreU(hn::DemoteTo(d_codes, code), d_codes, out->codes + j);
    }
    constexpr int32_t kLaneInputs = AsymmetricGroup::kInputs / int32_t{kVectorStride};
    const auto in_steps = hn::Sub(codes, hn::Mul(zero_point, hn::Set(d32, kLaneInputs)));
    const auto factor = hn::ConvertTo(d32, multiple);
    sum += hn::GetLane(hn::SumOfLanes(d32, hn::Mul(in_steps, factor)));
    HWY_ALIGN int32_t multiples[kHalvesLanes], zeros[kHalvesLanes];
    hn::Store(factor, d32, multiples);
    hn::Store(hn::Neg(hn::Mul(factor, zero_point)), d32, zeros);
    for (int64_t h = 0; h < kVectorHalves; ++h) {
      out->multiples[half + h] = static_cast<int16_t>(multiples[h]);
      out->zeros[half + h] = static_cast<int16_t>(zeros[h]);
    }
  }
  OrderAsWords(out->codes, AsymmetricGroup::kInputs);
  return static_cast<float>(sum);
}

// Calls of_group(std::integral_constant<DataType>, values, index of its first, group) for every group of a row; zeros stand
// behind the row's last value.
template <DataType kType, class Code, class OfGroup>
HWY_INLINE void ForGroups(const void* x, int64_t n, const CodedRows<Code>& out, const OfGroup& of_group) {
  const int64_t group = out.group, whole = n / group;
  for (int64_t g = 0; g < whole; ++g) of_group(std::integral_constant<DataType, kType>(), x, g * group, g);
  float rest[std::is_same_v<Code, WideCode> ? kMostWideInputs : kChunkInputs] = {};
  const OneF32 one;
  for (int64_t i = whole * group; i < n; ++i) {
    rest[i - whole * group] = hn::GetLane(LoadF32<kType>(one, x, i));
  }
  for (int64_t g = whole; g < out.groups(); ++g) {
    of_group(std::integral_constant<DataType, DataType::kF32>(), rest, 0, g);
    std::fill(std::begin(rest), std::end(rest), 0.0f);
  }
}

template <DataType kType, class Code>
void QuantizeActivationsOf(const void* x, int64_t n, const CodedRows<Code>& out) {
  ForGroups<kType>(x, n, out, [&](auto type, const void* values, int64_t first, int64_t g) {
    QuantizeGroupOf<type.value>(values, first, out.group, out.codes + g * out.group_stride(),
                                out.steps + g * out.tile_rows, out.sums + g * out.tile_rows);
  });
}

template <DataType kType>
void QuantizeActivationsOf(const void* x, int64_t n, const AsymmetricRows& out) {
  const HalvesTag d;
  auto largest_step = hn::Zero(d), not_finite = hn::Zero(d);
  ForGroups<kType>(x, n, out, [&](auto type, const void* values, int64_t first, int64_t g) {
    FindRanges<type.value>(values, first, out.codes + g * out.group_stride(), largest_step, not_finite);
  });
  const float largest = hn::GetLane(hn::MaxOfLanes(d, largest_step)),
              bad = hn::GetLane(hn::SumOfLanes(d, not_finite)),
              unit = largest * (1.0f / AsymmetricGroup::kLargestMultiple);
  const bool encodable = largest >= kSmallestCoded && bad == 0.0f;
  ForGroups<kType>(x, n, out, [&](auto type, const void* values, int64_t first, int64_t g) {
    AsymmetricGroup* codes = out.codes + g * out.group_stride();
    float& sum = out.sums[g * out.tile_rows];
    out.steps[g * out.tile_rows] = unit + bad;
    if (encodable) {
      sum = EncodeGroup<type.value>(values, first, unit, codes);
    } else {
      *codes = {};
      sum = 0.0f;
    }
  });
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
