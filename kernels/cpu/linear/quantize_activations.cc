// Activations as codes of 8 or 16 bits (code_products.h).
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

// One group, of whole vectors.
template <DataType kType, class Code>
HWY_INLINE void QuantizeGroupOf(const void* x, int64_t i, int64_t group, Code* codes, float* step,
                                float* sum) {
  using Stored = std::conditional_t<std::is_same_v<Code, WideCode>, int16_t, Code>;
  const hn::CappedTag<float, kGroupLanes> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<Stored, decltype(d)> d_codes;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Magnitude magnitude =
      MagnitudeOf<kType>(static_cast<const std::byte*>(x) + i * SizeOf(kType), static_cast<size_t>(group));
  const auto largest = hn::Set(d, magnitude.largest), not_finite = hn::Set(d, magnitude.not_finite);
  const auto inverse = InverseOf<Code>(d, largest, not_finite);
  auto total = hn::Zero(d32);
  for (int64_t j = 0; j < group; j += lanes) {
    const auto code = hn::NearestInt(hn::Mul(LoadF32<kType>(d, x, i + j), inverse));
    total = hn::Add(total, code);
    hn::StoreU(hn::DemoteTo(d_codes, code), d_codes, reinterpret_cast<Stored*>(codes) + j);
  }
  if constexpr (std::is_same_v<Code, int8_t>) OrderAsWords(codes, group);
  *step = hn::GetLane(StepOf<Code>(d, largest, not_finite));
  *sum = *step * static_cast<float>(hn::GetLane(hn::SumOfLanes(d32, total)));
}

template <DataType kType, class Code>
void QuantizeActivationsOf(const void* x, int64_t n, const CodedRows<Code>& out) {
  const int64_t group = out.group, whole = n / group;
  const auto quantize = [&](auto type, const void* values, int64_t first, int64_t g) {
    QuantizeGroupOf<type.value>(values, first, group, out.codes + g * out.group_stride(),
                                out.steps + g * out.tile_rows, out.sums + g * out.tile_rows);
  };
  for (int64_t g = 0; g < whole; ++g) quantize(std::integral_constant<DataType, kType>(), x, g * group, g);
  if (whole == out.groups()) return;
  // Zeros stand behind the row's last value.
  float rest[std::is_same_v<Code, WideCode> ? kMostWideInputs : kChunkInputs] = {};
  const OneF32 one;
  for (int64_t i = whole * group; i < n; ++i) {
    rest[i - whole * group] = hn::GetLane(LoadF32<kType>(one, x, i));
  }
  for (int64_t g = whole; g < out.groups(); ++g) {
    quantize(std::integral_constant<DataType, DataType::kF32>(), rest, 0, g);
    std::fill(std::begin(rest), std::end(rest), 0.0f);
  }
}

void QuantizeBytesImpl(const void* x, DataType dtype, int64_t n, const RowCodes& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}
void QuantizePairsImpl(const void* x, DataType dtype, int64_t n, const RowPairs& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}
void QuantizeWideImpl(const void* x, DataType dtype, int64_t n, const WideRows& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantizeBytesImpl);
HWY_EXPORT(QuantizePairsImpl);
HWY_EXPORT(QuantizeWideImpl);

void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowCodes& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeBytesImpl)(x, dtype, n, out);
}
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowPairs& out) {
  HWY_DYNAMIC_DISPATCH(QuantizePairsImpl)(x, dtype, n, out);
}
void QuantizeActivations(const void* x, DataType dtype, int64_t n, const WideRows& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeWideImpl)(x, dtype, n, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
