// Rows of the softmax, in base 2.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

float MaxOf(const float* values, int64_t n) {
  const FullF32 d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float result = values[0];
  int64_t i = 0;
  if (n >= 2 * lanes) {
    auto max0 = hn::LoadU(d, values), max1 = hn::LoadU(d, values + lanes);
    for (i = 2 * lanes; i + 2 * lanes <= n; i += 2 * lanes) {
      max0 = hn::Max(max0, hn::LoadU(d, values + i));
      max1 = hn::Max(max1, hn::LoadU(d, values + i + lanes));
    }
    result = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  }
  for (; i < n; ++i) result = std::max(result, values[i]);
  return result;
}

// values[i] = 2^(values[i] - max); returns the sum.
float Exp2Sum(float* values, int64_t n, float max) {
  const FullF32 d;
  const OneF32 one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto vmax = hn::Set(d, max);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto e0 = Exp2(d, hn::Sub(hn::LoadU(d, values + i), vmax));
    const auto e1 = Exp2(d, hn::Sub(hn::LoadU(d, values + i + lanes), vmax));
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    hn::StoreU(e0, d, values + i);
    hn::StoreU(e1, d, values + i + lanes);
  }
  float sum = Sum(d, hn::Add(sum0, sum1));
  for (; i < n; ++i) {
    values[i] = hn::GetLane(Exp2(one, hn::Sub(hn::LoadU(one, values + i), hn::Set(one, max))));
    sum += values[i];
  }
  return sum;
}

float SoftmaxRowImpl(float* scores, int64_t n, float* max, float* sum) {
  const float new_max = std::max(*max, MaxOf(scores, n));
  const float alpha = *max == new_max ? 1.0f : std::exp2(*max - new_max);
  *sum = *sum * alpha + Exp2Sum(scores, n, new_max);
  *max = new_max;
  return alpha;
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(SoftmaxRowImpl);

float SoftmaxRow(float* scores, int64_t n, float* max, float* sum) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxRowImpl)(scores, n, max, sum);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
