// Highway helpers of the files with inner loops; included once per instruction set by each of them.
#include "hwy/highway.h"
#include "kernels/cpu/machine/tiles.h"
#include "kernels/host/float_convert.h"
#include "kernels/tensor.h"

// Per-target include guard.
#if defined(KVBLEND_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVBLEND_KERNELS_CPU_SIMD_INL_H_
#undef KVBLEND_KERNELS_CPU_SIMD_INL_H_
#else
#define KVBLEND_KERNELS_CPU_SIMD_INL_H_
#endif

// Highway 1.0.3 has no target with AVX512-BF16. Files that begin and end their namespace with these macros
// have its instructions added to AVX-512's, where KVBLEND_BF16_WORDS is 1; they use them once HasBf16() has
// told that the processor has them. KVBLEND_BF16_ATTR stands where HWY_ATTR does otherwise, at lambdas.
#undef KVBLEND_BF16_WORDS
#undef KVBLEND_BF16_ATTR
#undef KVBLEND_BEFORE_BF16_NAMESPACE
#undef KVBLEND_AFTER_BF16_NAMESPACE
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
#define KVBLEND_BF16_WORDS 1
#define KVBLEND_BF16_ATTR __attribute__((target(HWY_TARGET_STR ",avx512bf16")))
#define KVBLEND_BEFORE_BF16_NAMESPACE() HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16") static_assert(true)
#define KVBLEND_AFTER_BF16_NAMESPACE() HWY_POP_ATTRIBUTES static_assert(true)
#else
#define KVBLEND_BF16_WORDS 0
#define KVBLEND_BF16_ATTR HWY_ATTR
#define KVBLEND_BEFORE_BF16_NAMESPACE() HWY_BEFORE_NAMESPACE()
#define KVBLEND_AFTER_BF16_NAMESPACE() HWY_AFTER_NAMESPACE()
#endif

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if KVBLEND_BF16_WORDS
HWY_INLINE bool HasBf16() { return __builtin_cpu_supports("avx512bf16"); }
#endif

using FullF32 = hn::ScalableTag<float>;
using OneF32 = hn::CappedTag<float, 1>;

// Calls body(tag, i) for whole vectors, then for single elements: `body` is written once for both.
template <class Body>
HWY_INLINE void ForEach(size_t n, const Body& body) {
  const FullF32 full;
  const OneF32 one;
  size_t i = 0;
  for (; i + hn::Lanes(full) <= n; i += hn::Lanes(full)) body(full, i);
  for (; i < n; ++i) body(one, i);
}

// Elements i.. of an array of kType as f32.
template <DataType kType, class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const void* data, size_t i) {
  if constexpr (kType == DataType::kF32) {
    return hn::LoadU(d, static_cast<const float*>(data) + i);
  } else if constexpr (kType == DataType::kBF16) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(
        d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, static_cast<const uint16_t*>(data) + i))));
  } else {
#if HWY_TARGET < HWY_SSE4  // a smaller number is a better target; these have F16C
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(data) + i));
#else
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    for (size_t j = 0; j < hn::Lanes(d); ++j) lanes[j] = F16ToF32(static_cast<const uint16_t*>(data)[i + j]);
    return hn::Load(d, lanes);
#endif
  }
}

// The bits of f32 rounded to bf16, in the upper halves; lower halves are undefined.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundToBF16(D /*d*/, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto lsb = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(d32, 0x7FFFu)), lsb);
  const auto quiet_nan = hn::Or(bits, hn::Set(d32, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet_nan, rounded);
}

template <DataType kType, class D>
HWY_INLINE void StoreF32(D d, hn::Vec<D> v, void* data, size_t i) {
  if constexpr (kType == DataType::kF32) {
    hn::StoreU(v, d, static_cast<float*>(data) + i);
  } else if constexpr (kType == DataType::kBF16) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToSigned<D> di32;  // below 2^16, so the saturating conversion is exact
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di32, hn::ShiftRight<16>(RoundToBF16(d, v)))), d16,
               static_cast<uint16_t*>(data) + i);
  } else {
#if HWY_TARGET < HWY_SSE4
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, static_cast<hwy::float16_t*>(data) + i);
#else
    HWY_ALIGN float lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (size_t j = 0; j < hn::Lanes(d); ++j) static_cast<uint16_t*>(data)[i + j] = F32ToF16(lanes[j]);
#endif
  }
}

// v held at a bound from below or from above. NaN stays NaN, which hn::Max and hn::Min leave open.
template <class D>
HWY_INLINE hn::Vec<D> AtLeast(D d, hn::Vec<D> v, float bound) {
  const auto limit = hn::Set(d, bound);
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Max(limit, v);  // where one is NaN the instruction gives the second
#else
  return hn::IfThenElse(hn::Lt(v, limit), limit, v);
#endif
}
template <class D>
HWY_INLINE hn::Vec<D> AtMost(D d, hn::Vec<D> v, float bound) {
  const auto limit = hn::Set(d, bound);
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Min(limit, v);
#else
  return hn::IfThenElse(hn::Gt(v, limit), limit, v);
#endif
}

// 2^x for x <= 0 with a relative error below 2e-7, or 2.7e-6 with kDegree 4; below 2^-126 the result is
// 2^-126 instead of a subnormal. NaN stays NaN.
template <int kDegree = 5, class D>
HWY_INLINE hn::Vec<D> Exp2(D d, hn::Vec<D> x) {
  static_assert(kDegree == 4 || kDegree == 5);
  const hn::RebindToUnsigned<D> d32;
  x = AtLeast(d, x, -126.0f);
  // Adding 1.5 * 2^23 rounds x to an integer k and leaves it in the low bits; with 128 more they hold k +
  // 128, the exponent of 2^(k + 1), the last factor.
  const auto magic = hn::Set(d, 12582912.0f + 128.0f);
  const auto shifted = hn::Add(x, magic);
  const auto f = hn::Sub(x, hn::Sub(shifted, magic));  // in [-0.5, 0.5]
  // Half of a minimax polynomial for 2^f, relative error 7.5e-8 or 2.6e-6.
  const auto coefficient = [d](float of_degree_4, float of_degree_5) HWY_ATTR {
    return hn::Set(d, (kDegree == 4 ? of_degree_4 : of_degree_5) / 2);
  };
  auto p = coefficient(0.009570102f, 0.009675540961325169f);
  if constexpr (kDegree == 5) p = hn::MulAdd(hn::Set(d, 0.0013276467797787374f / 2), f, p);
  p = hn::MulAdd(p, f, coefficient(0.055917863f, 0.05550713464617729f));
  p = hn::MulAdd(p, f, coefficient(0.24024744f, 0.24022120237350464f));
  p = hn::MulAdd(p, f, coefficient(0.6931218f, 0.6931469440460205f));
  p = hn::MulAdd(p, f, coefficient(0.9999993f, 1.0000001192092896f));
  return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(d32, shifted))));
}

HWY_INLINE float Sum(FullF32 d, hn::Vec<FullF32> v) { return hn::GetLane(hn::SumOfLanes(d, v)); }

struct Magnitude {
  float largest;     // of the absolute values
  float not_finite;  // 0 where all values are finite, NaN otherwise
};
template <DataType kType>
HWY_INLINE Magnitude MagnitudeOf(const void* x, size_t n) {
  const FullF32 full;
  const OneF32 one;
  auto largest = hn::Zero(full), not_finite = hn::Zero(full);
  size_t i = 0;
  for (; i + hn::Lanes(full) <= n; i += hn::Lanes(full)) {
    const auto v = LoadF32<kType>(full, x, i);
    largest = hn::Max(largest, hn::Abs(v));
    not_finite = hn::MulAdd(v, hn::Zero(full), not_finite);
  }
  auto one_largest = hn::Set(one, hn::GetLane(hn::MaxOfLanes(full, largest)));
  auto one_not_finite = hn::Set(one, hn::GetLane(hn::SumOfLanes(full, not_finite)));
  for (; i < n; ++i) {
    const auto v = LoadF32<kType>(one, x, i);
    one_largest = hn::Max(one_largest, hn::Abs(v));
    one_not_finite = hn::MulAdd(v, hn::Zero(one), one_not_finite);
  }
  return {hn::GetLane(one_largest), hn::GetLane(one_not_finite)};
}

// Calls function<DataType>() for a data type known at run time.
#define KVBLEND_FOR_DTYPE(dtype, call)              \
  do {                                              \
    switch (dtype) {                                \
      case DataType::kF32: {                        \
        constexpr DataType kType = DataType::kF32;  \
        call;                                       \
        break;                                      \
      }                                             \
      case DataType::kBF16: {                       \
        constexpr DataType kType = DataType::kBF16; \
        call;                                       \
        break;                                      \
      }                                             \
      case DataType::kF16: {                        \
        constexpr DataType kType = DataType::kF16;  \
        call;                                       \
        break;                                      \
      }                                             \
      case DataType::kInt8: /* no matrix has it */  \
        break;                                      \
    }                                               \
  } while (false)

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
