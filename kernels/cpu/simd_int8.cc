// Activations and weights in 8 bits, and what becomes of their products.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

constexpr float kLargestCode = 127.0f;

// Of a step of a code. `not_finite`: as in Magnitude.
template <class D>
HWY_INLINE hn::Vec<D> StepOf(D d, hn::Vec<D> largest, hn::Vec<D> not_finite) {
  return hn::Add(hn::Mul(largest, hn::Set(d, 1.0f / kLargestCode)), not_finite);
}

// Codes per unit; none where there is nothing, or nothing finite, to encode.
template <class D>
HWY_INLINE hn::Vec<D> InverseOf(D d, hn::Vec<D> largest, hn::Vec<D> not_finite) {
  // A subnormal maximum has no finite inverse.
  const auto encodable = hn::And(hn::Ge(largest, hn::Set(d, std::numeric_limits<float>::min())),
                                 hn::Eq(not_finite, hn::Zero(d)));
  const auto inverse =
      hn::Div(hn::Set(d, kLargestCode), hn::IfThenElse(encodable, largest, hn::Set(d, 1.0f)));
  return hn::IfThenElseZero(encodable, inverse);
}

template <DataType kType>
float QuantiseActivationsOf(const void* x, int64_t n, uint8_t* codes) {
  const auto count = static_cast<size_t>(n);
  const Magnitude magnitude = MagnitudeOf<kType>(x, count);
  const OneF32 one;
  const auto largest = hn::Set(one, magnitude.largest), not_finite = hn::Set(one, magnitude.not_finite);
  const float inverse = hn::GetLane(InverseOf(one, largest, not_finite));
  ForEach(count, [&](auto d, size_t j) HWY_ATTR {
    const hn::Rebind<uint8_t, decltype(d)> d8;
    const hn::RebindToSigned<decltype(d)> d32;
    const auto code = hn::NearestInt(hn::Mul(LoadF32<kType>(d, x, j), hn::Set(d, inverse)));
    hn::StoreU(hn::DemoteTo(d8, hn::Add(code, hn::Set(d32, 128))), d8, codes + j);
  });
  return hn::GetLane(StepOf(one, largest, not_finite));
}

float QuantiseActivationsImpl(const void* x, DataType dtype, int64_t n, uint8_t* codes) {
  float step = 0;
  KVBLEND_FOR_DTYPE(dtype, step = QuantiseActivationsOf<kType>(x, n, codes));
  return step;
}

using BlockF32 = hn::CappedTag<float, kKeyStep>;

// Input `i` of a quad, of some outputs. Words behind the last are zeros.
template <bool kPairs>
HWY_INLINE hn::Vec<BlockF32> LoadInput(const uint32_t* words, int64_t steps, int64_t quad, int i,
                                       int64_t lane) {
  const BlockF32 d;
  const hn::RebindToUnsigned<BlockF32> d32;
  const int64_t step = kPairs ? 2 * quad + i / 2 : 4 * quad + i;
  if (step >= steps) return hn::Zero(d);
  const auto word = hn::LoadU(d32, words + step * kPackedBlock + lane);
  if constexpr (!kPairs) return hn::BitCast(d, word);
  return hn::BitCast(d, i % 2 == 0 ? hn::ShiftLeft<16>(word) : hn::And(word, hn::Set(d32, 0xFFFF0000u)));
}

template <bool kPairs>
void QuantiseWeightBlockOf(const uint32_t* words, int64_t steps, int64_t quads, uint32_t* codes,
                           float* scales, int32_t* offsets) {
  const BlockF32 d;
  const hn::RebindToSigned<BlockF32> di;
  const hn::RebindToUnsigned<BlockF32> du;
  for (int64_t lane = 0; lane < kPackedBlock; lane += static_cast<int64_t>(hn::Lanes(d))) {
    auto largest = hn::Zero(d), not_finite = hn::Zero(d);
    for (int64_t quad = 0; quad < quads; ++quad) {
      for (int i = 0; i < 4; ++i) {
        const auto v = LoadInput<kPairs>(words, steps, quad, i, lane);
        largest = hn::Max(largest, hn::Abs(v));
        not_finite = hn::MulAdd(v, hn::Zero(d), not_finite);
      }
    }
    const auto inverse = InverseOf(d, largest, not_finite);
    auto sum = hn::Zero(di);
    for (int64_t quad = 0; quad < quads; ++quad) {
      const auto code = [&](int i) HWY_ATTR {
        return hn::NearestInt(hn::Mul(LoadInput<kPairs>(words, steps, quad, i, lane), inverse));
      };
      const auto a = code(0), b = code(1), c = code(2), e = code(3);
      sum = hn::Add(sum, hn::Add(hn::Add(a, b), hn::Add(c, e)));
      const auto byte = hn::Set(du, 255u);
      const auto low =
          hn::Or(hn::And(hn::BitCast(du, a), byte), hn::ShiftLeft<8>(hn::And(hn::BitCast(du, b), byte)));
      const auto high =
          hn::Or(hn::ShiftLeft<16>(hn::And(hn::BitCast(du, c), byte)), hn::ShiftLeft<24>(hn::BitCast(du, e)));
      hn::StoreU(hn::Or(low, high), du, codes + quad * kPackedBlock + lane);
    }
    hn::StoreU(StepOf(d, largest, not_finite), d, scales + lane);
    hn::StoreU(hn::ShiftLeft<7>(sum), di, offsets + lane);
  }
}

void QuantiseWeightBlockImpl(const uint32_t* words, DataType dtype, int64_t steps, int64_t quads,
                             uint32_t* codes, float* scales, int32_t* offsets) {
  if (dtype == DataType::kBF16) {
    QuantiseWeightBlockOf<true>(words, steps, quads, codes, scales, offsets);
  } else {
    QuantiseWeightBlockOf<false>(words, steps, quads, codes, scales, offsets);
  }
}

void ScaleSumsImpl(const int32_t* sums, const int32_t* offsets, const float* scales, float row_scale,
                   bool accumulate, int64_t n, float* out) {
  ForEach(n, [&](auto d, size_t i) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto product = hn::ConvertTo(d, hn::Sub(hn::LoadU(di, sums + i), hn::LoadU(di, offsets + i)));
    const auto scale = hn::Mul(hn::LoadU(d, scales + i), hn::Set(d, row_scale));
    const auto base = accumulate ? hn::LoadU(d, out + i) : hn::Zero(d);
    hn::StoreU(hn::MulAdd(product, scale, base), d, out + i);
  });
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantiseActivationsImpl);
HWY_EXPORT(QuantiseWeightBlockImpl);
HWY_EXPORT(ScaleSumsImpl);

float QuantiseActivations(const void* x, DataType dtype, int64_t n, uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(QuantiseActivationsImpl)(x, dtype, n, codes);
}
void QuantiseWeightBlock(const uint32_t* words, DataType dtype, int64_t steps, int64_t quads, uint32_t* codes,
                         float* scales, int32_t* offsets) {
  HWY_DYNAMIC_DISPATCH(QuantiseWeightBlockImpl)(words, dtype, steps, quads, codes, scales, offsets);
}
void ScaleSums(const int32_t* sums, const int32_t* offsets, const float* scales, float row_scale,
               bool accumulate, int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(ScaleSumsImpl)(sums, offsets, scales, row_scale, accumulate, n, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
