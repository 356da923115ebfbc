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
#include <cstring>

#include "kernels/cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

float MaxOfImpl(const float* values, int64_t n) {
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

// out[i] = 2^(scores[i] - max); returns the sum.
template <DataType kOut>
HWY_INLINE float Exp2Sum(const float* scores, int64_t n, float max, void* out) {
  const FullF32 d;
  const OneF32 one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto vmax = hn::Set(d, max);
  auto sum0 = hn::Zero(d), sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto e0 = Exp2(d, hn::Sub(hn::LoadU(d, scores + i), vmax));
    const auto e1 = Exp2(d, hn::Sub(hn::LoadU(d, scores + i + lanes), vmax));
    sum0 = hn::Add(sum0, e0);
    sum1 = hn::Add(sum1, e1);
    StoreF32<kOut>(d, e0, out, i);
    StoreF32<kOut>(d, e1, out, i + lanes);
  }
  float sum = Sum(d, hn::Add(sum0, sum1));
  for (; i < n; ++i) {
    const auto e = Exp2(one, hn::Sub(hn::LoadU(one, scores + i), hn::Set(one, max)));
    sum += hn::GetLane(e);
    StoreF32<kOut>(one, e, out, i);
  }
  return sum;
}

template <DataType kOut>
float SoftmaxRowTo(const float* scores, int64_t begin, int64_t end, int64_t n, float* max, float* sum,
                   void* out) {
  const float new_max = std::max(*max, MaxOfImpl(scores + begin, end - begin));
  const float alpha = *max == new_max ? 1.0f : std::exp2(*max - new_max);
  auto* bytes = static_cast<std::byte*>(out);
  const float block_sum = Exp2Sum<kOut>(scores + begin, end - begin, new_max, bytes + begin * SizeOf(kOut));
  std::memset(bytes, 0, begin * SizeOf(kOut));
  std::memset(bytes + end * SizeOf(kOut), 0, (n - end) * SizeOf(kOut));
  *sum = *sum * alpha + block_sum;
  *max = new_max;
  return alpha;
}

float SoftmaxRowImpl(const float* scores, int64_t begin, int64_t end, int64_t n, float* max, float* sum,
                     void* out, DataType out_dtype) {
  float alpha = 1.0f;
  KVBLEND_FOR_DTYPE(out_dtype, alpha = SoftmaxRowTo<kType>(scores, begin, end, n, max, sum, out));
  return alpha;
}

float Exp2RowImpl(float* values, int64_t begin, int64_t end, int64_t n, float max) {
  const float sum = Exp2Sum<DataType::kF32>(values + begin, end - begin, max, values + begin);
  std::memset(values, 0, begin * sizeof(float));
  std::memset(values + end, 0, (n - end) * sizeof(float));
  return sum;
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(SoftmaxRowImpl);
HWY_EXPORT(MaxOfImpl);
HWY_EXPORT(Exp2RowImpl);

float SoftmaxRow(const float* scores, int64_t begin, int64_t end, int64_t n, float* max, float* sum,
                 void* out, DataType out_dtype) {
  return HWY_DYNAMIC_DISPATCH(SoftmaxRowImpl)(scores, begin, end, n, max, sum, out, out_dtype);
}
float MaxOf(const float* values, int64_t n) { return HWY_DYNAMIC_DISPATCH(MaxOfImpl)(values, n); }
float Exp2Row(float* values, int64_t begin, int64_t end, int64_t n, float max) {
  return HWY_DYNAMIC_DISPATCH(Exp2RowImpl)(values, begin, end, n, max);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
