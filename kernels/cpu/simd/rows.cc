// Row-wise operations: norms, activations, conversions, distances.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "hwy/contrib/math/math-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/simd/simd.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

const char* TargetNameImpl() { return hwy::TargetName(HWY_TARGET); }

// The sum of body(tag, i) over all i; two accumulators hide the latency of additions.
template <class Body>
HWY_INLINE float SumOver(size_t n, const Body& body) {
  const FullF32 full;
  const OneF32 one;
  const size_t lanes = hn::Lanes(full);
  auto sum0 = hn::Zero(full), sum1 = hn::Zero(full);
  size_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    sum0 = hn::Add(sum0, body(full, i));
    sum1 = hn::Add(sum1, body(full, i + lanes));
  }
  float tail = 0;
  for (; i < n; ++i) tail += hn::GetLane(body(one, i));
  return Sum(full, hn::Add(sum0, sum1)) + tail;
}

// As StoreF32. kNative: the processor rounds to bf16 itself.
template <DataType kType, bool kNative, class D>
HWY_INLINE void StoreRounded(D d, hn::Vec<D> v, void* out, size_t i) {
#if KVBLEND_BF16_WORDS
  if constexpr (kNative && kType == DataType::kBF16 && std::is_same_v<D, FullF32>) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<uint16_t*>(out) + i),
                        (__m256i)_mm512_cvtneps_pbh(v.raw));
    return;
  }
#endif
  StoreF32<kType>(d, v, out, i);
}

// Calls body(whether the processor rounds to bf16, as a constant).
template <class Body>
HWY_INLINE void WithRounding(const Body& body) {
#if KVBLEND_BF16_WORDS
  if (HasBf16()) return body(std::true_type());
#endif
  body(std::false_type());
}

void RmsNormRowImpl(const float* x, const float* weight, float epsilon, int64_t n, DataType out_dtype,
                    void* out) {
  const float sum = SumOver(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
    const auto v = hn::LoadU(d, x + i);
    return hn::Mul(v, v);
  });
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(n) + epsilon);
  WithRounding([&](auto native) KVBLEND_BF16_ATTR {
    KVBLEND_FOR_DTYPE(out_dtype, ForEach(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
                        const auto v = hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)),
                                               hn::LoadU(d, weight + i));
                        StoreRounded<kType, native()>(d, v, out, i);
                      }));
  });
}

// exp(-|z|), for a result that is rounded to kOut: 2^(-|z| log2(e)) has |z| times f32's rounding error.
template <DataType kOut, class D>
HWY_INLINE hn::Vec<D> ExpOfMinusAbs(D d, hn::Vec<D> z) {
  const auto x = hn::Neg(hn::Abs(z));
  if constexpr (kOut == DataType::kF32) return hn::Exp(d, x);
  return Exp2<4>(d, hn::Mul(x, hn::Set(d, 1.44269504088896340736f)));
}

// a / b for b in [1, 2], for a result that is rounded to kOut: a division takes several times as long as an
// estimate and a step of Newton's.
template <DataType kOut, class D>
HWY_INLINE hn::Vec<D> Quotient(D d, hn::Vec<D> a, hn::Vec<D> b) {
  if constexpr (kOut == DataType::kF32) return hn::Div(a, b);
  const auto inverse = hn::ApproximateReciprocal(b);
  return hn::Mul(a, hn::Mul(inverse, hn::NegMulAdd(b, inverse, hn::Set(d, 2.0f))));
}

// z / (1 + exp(-t)) * up, where t has z's sign, without an exponential that could overflow; `hold` may change
// z and up first.
template <bool kNative, typename Hold, typename Exponent>
HWY_INLINE void GateRows(const float* gate, const float* up, int64_t stride, const MatrixView& out,
                         const Hold& hold, const Exponent& exponent) {
  const auto row_bytes = out.row_stride * SizeOf(out.dtype);
  auto* row = static_cast<std::byte*>(out.data);
  KVBLEND_FOR_DTYPE(
      out.dtype, for (int64_t r = 0; r < out.rows; ++r, gate += stride, up += stride, row += row_bytes) {
        ForEach(out.cols, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
          auto z = hn::LoadU(d, gate + i), factor = hn::LoadU(d, up + i);
          hold(d, z, factor);
          const auto one = hn::Set(d, 1.0f), e = ExpOfMinusAbs<kType>(d, exponent(d, z));
          const auto numerator = hn::Mul(z, hn::IfThenElse(hn::Lt(z, hn::Zero(d)), e, one));
          const auto gated = Quotient<kType>(d, numerator, hn::Add(one, e));
          StoreRounded<kType, kNative>(d, hn::Mul(gated, factor), row, i);
        });
      });
}

template <bool kNative>
HWY_INLINE void GateWith(Activation activation, const float* gate, const float* up, int64_t stride,
                         const MatrixView& out) {
  const auto as_they_are = [](auto, auto&, auto&) KVBLEND_BF16_ATTR {};
  if (activation == Activation::kSilu) {
    GateRows<kNative>(gate, up, stride, out, as_they_are, [](auto, auto z) KVBLEND_BF16_ATTR { return z; });
    return;
  }
  if (activation == Activation::kClampedSilu) {
    const auto clamp = [](auto d, auto& z, auto& factor) KVBLEND_BF16_ATTR {
      z = AtMost(d, z, kClampedSiluLimit);
      factor = AtMost(d, AtLeast(d, factor, -kClampedSiluLimit), kClampedSiluLimit);
      factor = hn::Add(factor, hn::Set(d, 1.0f));
    };
    GateRows<kNative>(gate, up, stride, out, clamp, [](auto d, auto z) KVBLEND_BF16_ATTR {
      return hn::Mul(z, hn::Set(d, kClampedSiluSharpness));
    });
    return;
  }
  // 2 sqrt(2 / pi) z (1 + 0.044715 z^2)
  GateRows<kNative>(gate, up, stride, out, as_they_are, [](auto d, auto z) KVBLEND_BF16_ATTR {
    const auto inner = hn::MulAdd(hn::Mul(z, z), hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
    return hn::Mul(hn::Mul(z, hn::Set(d, 1.5957691216057308f)), inner);
  });
}

void GatedActivationRowsImpl(Activation activation, const float* gate, const float* up, int64_t stride,
                             const MatrixView& out) {
  WithRounding([&](auto native) KVBLEND_BF16_ATTR { GateWith<native()>(activation, gate, up, stride, out); });
}

template <DataType kIn>
void ConvertRowFrom(const void* in, void* out, DataType out_dtype, int64_t n) {
  KVBLEND_FOR_DTYPE(out_dtype, ForEach(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
                      StoreF32<kType>(d, LoadF32<kIn>(d, in, i), out, i);
                    }));
}

void ConvertRowImpl(const void* in, DataType in_dtype, void* out, DataType out_dtype, int64_t n) {
  if (in_dtype == out_dtype) {
    std::memcpy(out, in, n * SizeOf(in_dtype));
    return;
  }
  KVBLEND_FOR_DTYPE(in_dtype, ConvertRowFrom<kType>(in, out, out_dtype, n));
}

void ScaleRowImpl(const float* in, float scale, void* out, DataType out_dtype, int64_t n) {
  WithRounding([&](auto native) KVBLEND_BF16_ATTR {
    KVBLEND_FOR_DTYPE(out_dtype, ForEach(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
                        const auto v = hn::Mul(hn::LoadU(d, in + i), hn::Set(d, scale));
                        StoreRounded<kType, native()>(d, v, out, i);
                      }));
  });
}

void AddScaledRowImpl(const float* in, float scale, float* out, int64_t n) {
  ForEach(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, in + i), hn::Set(d, scale), hn::LoadU(d, out + i)), d, out + i);
  });
}

void SoftCapRowImpl(float* x, float cap, int64_t n) {
  const float inverse = 1.0f / cap;
  ForEach(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
    const auto tanh = hn::Tanh(d, hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    hn::StoreU(hn::Mul(tanh, hn::Set(d, cap)), d, x + i);
  });
}

template <DataType kCached>
float SquaredDistanceTo(const float* fresh, const void* cached, int64_t n) {
  return SumOver(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
    const auto difference = hn::Sub(hn::LoadU(d, fresh + i), LoadF32<kCached>(d, cached, i));
    return hn::Mul(difference, difference);
  });
}

float SquaredDistanceImpl(const float* fresh, const void* cached, DataType cached_dtype, int64_t n) {
  float result = 0;
  KVBLEND_FOR_DTYPE(cached_dtype, result = SquaredDistanceTo<kType>(fresh, cached, n));
  return result;
}

float SumOfSquaresImpl(const void* x, DataType dtype, int64_t n) {
  float result = 0;
  KVBLEND_FOR_DTYPE(dtype, result = SumOver(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
                             const auto value = LoadF32<kType>(d, x, i);
                             return hn::Mul(value, value);
                           }));
  return result;
}

void AddSquaresOfPairsImpl(const uint16_t* x, int64_t n, float (&sums)[2]) {
  const auto* words = reinterpret_cast<const uint32_t*>(x);
  sums[0] += SumOver(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
    const hn::RebindToUnsigned<decltype(d)> d32;
    const auto value = hn::BitCast(d, hn::ShiftLeft<16>(hn::LoadU(d32, words + i)));
    return hn::Mul(value, value);
  });
  sums[1] += SumOver(n, [&](auto d, size_t i) KVBLEND_BF16_ATTR {
    const hn::RebindToUnsigned<decltype(d)> d32;
    const auto value = hn::BitCast(d, hn::And(hn::LoadU(d32, words + i), hn::Set(d32, 0xFFFF0000u)));
    return hn::Mul(value, value);
  });
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(TargetNameImpl);
HWY_EXPORT(RmsNormRowImpl);
HWY_EXPORT(GatedActivationRowsImpl);
HWY_EXPORT(ConvertRowImpl);
HWY_EXPORT(ScaleRowImpl);
HWY_EXPORT(SoftCapRowImpl);
HWY_EXPORT(AddScaledRowImpl);
HWY_EXPORT(SquaredDistanceImpl);
HWY_EXPORT(SumOfSquaresImpl);
HWY_EXPORT(AddSquaresOfPairsImpl);

// Dispatched as all others are, so that it is what they run on. Highway 1.0.3's SupportedTargets() must not
// be asked: it makes later calls forget what DisableTargets() took away.
std::string TargetName() { return HWY_DYNAMIC_DISPATCH(TargetNameImpl)(); }

void RmsNormRow(const float* x, const float* weight, float epsilon, int64_t n, DataType out_dtype,
                void* out) {
  HWY_DYNAMIC_DISPATCH(RmsNormRowImpl)(x, weight, epsilon, n, out_dtype, out);
}
void GatedActivationRows(Activation activation, const float* gate, const float* up, int64_t stride,
                         const MatrixView& out) {
  HWY_DYNAMIC_DISPATCH(GatedActivationRowsImpl)(activation, gate, up, stride, out);
}
void ConvertRow(const void* in, DataType in_dtype, void* out, DataType out_dtype, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ConvertRowImpl)(in, in_dtype, out, out_dtype, n);
}
void ScaleRow(const float* in, float scale, void* out, DataType out_dtype, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleRowImpl)(in, scale, out, out_dtype, n);
}
void SoftCapRow(float* x, float cap, int64_t n) { HWY_DYNAMIC_DISPATCH(SoftCapRowImpl)(x, cap, n); }
void AddScaledRow(const float* in, float scale, float* out, int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddScaledRowImpl)(in, scale, out, n);
}
float SquaredDistance(const float* fresh, const void* cached, DataType cached_dtype, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SquaredDistanceImpl)(fresh, cached, cached_dtype, n);
}

float SumOfSquares(const void* x, DataType dtype, int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquaresImpl)(x, dtype, n);
}
void AddSquaresOfPairs(const uint16_t* x, int64_t n, float (&sums)[2]) {
  HWY_DYNAMIC_DISPATCH(AddSquaresOfPairsImpl)(x, n, sums);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
