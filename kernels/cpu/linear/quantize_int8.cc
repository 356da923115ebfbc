// Activations and weights as codes of 8 bits (code_products.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear/quantize_int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/machine/tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

constexpr float kLargestCode = 127.0f;
constexpr size_t kGroupLanes = 16;  // divides every group

// The step of a group's codes. `not_finite`: as in Magnitude.
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

// One group, of whole vectors.
template <DataType kType>
HWY_INLINE void QuantizeGroupOf(const void* x, int64_t i, int64_t group, int8_t* codes, float* step,
                                float* sum) {
  const hn::CappedTag<float, kGroupLanes> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Magnitude magnitude =
      MagnitudeOf<kType>(static_cast<const std::byte*>(x) + i * SizeOf(kType), static_cast<size_t>(group));
  const auto largest = hn::Set(d, magnitude.largest), not_finite = hn::Set(d, magnitude.not_finite);
  const auto inverse = InverseOf(d, largest, not_finite);
  auto total = hn::Zero(d32);
  for (int64_t j = 0; j < group; j += lanes) {
    const auto code = hn::NearestInt(hn::Mul(LoadF32<kType>(d, x, i + j), inverse));
    total = hn::Add(total, code);
    hn::StoreU(hn::DemoteTo(d8, code), d8, codes + j);
  }
  *step = hn::GetLane(StepOf(d, largest, not_finite));
  *sum = *step * static_cast<float>(hn::GetLane(hn::SumOfLanes(d32, total)));
}

template <DataType kType>
void QuantizeActivationsOf(const void* x, int64_t n, const RowCodes& out) {
  const int64_t group = out.group, whole = n / group;
  for (int64_t g = 0; g < whole; ++g) {
    QuantizeGroupOf<kType>(x, g * group, group, out.codes + g * group, out.steps + g, out.sums + g);
  }
  float rest[kChunkInputs] = {};  // of the last group, and zeros
  const OneF32 one;
  for (int64_t i = whole * group; i < n; ++i) {
    rest[i - whole * group] = hn::GetLane(LoadF32<kType>(one, x, i));
  }
  for (int64_t g = whole; g < out.groups(); ++g) {
    QuantizeGroupOf<DataType::kF32>(rest, 0, group, out.codes + g * group, out.steps + g, out.sums + g);
    std::fill(std::begin(rest), std::end(rest), 0.0f);
  }
}

void QuantizeActivationsImpl(const void* x, DataType dtype, int64_t n, const RowCodes& out) {
  KVBLEND_FOR_DTYPE(dtype, QuantizeActivationsOf<kType>(x, n, out));
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
void QuantizeWeightBlockOf(const uint32_t* words, int64_t steps, int64_t cols, int64_t group,
                           const BlockCodes& out) {
  const BlockF32 d;
  const hn::RebindToSigned<BlockF32> di;
  const hn::RebindToUnsigned<BlockF32> du;
  const auto zero_code = hn::Set(di, 128);  // codes are 1 .. 255
  const int64_t quads = group / kCodesPerWord;
  for (int64_t lane = 0; lane < kPackedBlock; lane += static_cast<int64_t>(hn::Lanes(d))) {
    for (int64_t g = 0; g < cols / group; ++g) {
      auto largest = hn::Zero(d), not_finite = hn::Zero(d);
      for (int64_t quad = g * quads; quad < (g + 1) * quads; ++quad) {
        for (int i = 0; i < kCodesPerWord; ++i) {
          const auto v = LoadInput<kPairs>(words, steps, quad, i, lane);
          largest = hn::Max(largest, hn::Abs(v));
          not_finite = hn::MulAdd(v, hn::Zero(d), not_finite);
        }
      }
      const auto inverse = InverseOf(d, largest, not_finite);
      for (int64_t quad = g * quads; quad < (g + 1) * quads; ++quad) {
        const auto code = [&](int i) HWY_ATTR {
          const auto scaled = hn::Mul(LoadInput<kPairs>(words, steps, quad, i, lane), inverse);
          // 0 where there is a NaN: its step is one.
          return hn::And(hn::BitCast(du, hn::Add(hn::NearestInt(scaled), zero_code)), hn::Set(du, 255u));
        };
        const auto low = hn::Or(code(0), hn::ShiftLeft<8>(code(1))),
                   high = hn::Or(code(2), hn::ShiftLeft<8>(code(3)));
        hn::StoreU(hn::Or(low, hn::ShiftLeft<16>(high)), du, out.codes + quad * kPackedBlock + lane);
      }
      const auto step = StepOf(d, largest, not_finite);
      hn::StoreU(step, d, out.steps + g * kPackedBlock + lane);
      hn::StoreU(hn::Mul(step, hn::Set(d, -128.0f)), d, out.minimums + g * kPackedBlock + lane);
    }
  }
}

void QuantizeWeightBlockImpl(const uint32_t* words, DataType dtype, int64_t steps, int64_t cols,
                             int64_t group, const BlockCodes& out) {
  if (dtype == DataType::kBF16) {
    QuantizeWeightBlockOf<true>(words, steps, cols, group, out);
  } else {
    QuantizeWeightBlockOf<false>(words, steps, cols, group, out);
  }
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(QuantizeActivationsImpl);
HWY_EXPORT(QuantizeWeightBlockImpl);

void QuantizeActivations(const void* x, DataType dtype, int64_t n, const RowCodes& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeActivationsImpl)(x, dtype, n, out);
}
void QuantizeWeightBlock(const uint32_t* words, DataType dtype, int64_t steps, int64_t cols, int64_t group,
                         const BlockCodes& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeWeightBlockImpl)(words, dtype, steps, cols, group, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
