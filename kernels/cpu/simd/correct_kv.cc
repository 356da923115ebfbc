// Learned corrections of rows of K and V.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/correct_kv.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// No wider than what the rank and the rows are padded to.
using CorrectionF32 = hn::CappedTag<float, kCorrectionLanes>;

// inner[i] = x[i] down. Each vector of `down` is read once for kRows rows, whose sums stay in registers.
template <size_t kRows>
void ProjectRows(const CorrectionWeights& weights, const float* x, float* inner) {
  const CorrectionF32 d;
  const size_t rank = weights.rank, stride = weights.row_stride, channels = weights.channels;
  for (size_t j = 0; j < static_cast<size_t>(weights.map_rank); j += hn::Lanes(d)) {
    hn::Vec<CorrectionF32> sums[kRows];
    for (size_t i = 0; i < kRows; ++i) sums[i] = hn::Zero(d);
    for (size_t c = 0; c < channels; ++c) {
      const auto w = hn::LoadU(d, weights.down + c * rank + j);
      for (size_t i = 0; i < kRows; ++i) sums[i] = hn::MulAdd(hn::Set(d, x[i * stride + c]), w, sums[i]);
    }
    for (size_t i = 0; i < kRows; ++i) hn::StoreU(sums[i], d, inner + i * rank + j);
  }
}

// x[i] = scale * x[i] + offset of token + i + inner[i] up
template <size_t kRows>
void ExpandRows(const CorrectionWeights& weights, int64_t token, const float* inner, float* x) {
  const CorrectionF32 d;
  const size_t rank = weights.rank, stride = weights.row_stride;
  const float* offsets[kRows];
  for (size_t i = 0; i < kRows; ++i) offsets[i] = weights.offset_of(token + static_cast<int64_t>(i));
  for (size_t c = 0; c < stride; c += hn::Lanes(d)) {
    const auto scale = hn::LoadU(d, weights.scale + c);
    hn::Vec<CorrectionF32> sums[kRows];
    for (size_t i = 0; i < kRows; ++i) {
      sums[i] = hn::MulAdd(scale, hn::LoadU(d, x + i * stride + c), hn::LoadU(d, offsets[i] + c));
    }
    for (size_t j = 0; j < static_cast<size_t>(weights.map_rank); ++j) {
      const auto w = hn::LoadU(d, weights.up + j * stride + c);
      for (size_t i = 0; i < kRows; ++i) sums[i] = hn::MulAdd(hn::Set(d, inner[i * rank + j]), w, sums[i]);
    }
    for (size_t i = 0; i < kRows; ++i) hn::StoreU(sums[i], d, x + i * stride + c);
  }
}

void CorrectRowsImpl(const CorrectionWeights& weights, int64_t first_token, int64_t rows, float* scratch,
                     float* x) {
  constexpr int64_t kBlock = kCorrectionBlock;
  int64_t i = 0;
  for (; i + kBlock <= rows; i += kBlock) {
    ProjectRows<kBlock>(weights, x + i * weights.row_stride, scratch);
    ExpandRows<kBlock>(weights, first_token + i, scratch, x + i * weights.row_stride);
  }
  for (; i < rows; ++i) {
    ProjectRows<1>(weights, x + i * weights.row_stride, scratch);
    ExpandRows<1>(weights, first_token + i, scratch, x + i * weights.row_stride);
  }
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(CorrectRowsImpl);

void CorrectRows(const CorrectionWeights& weights, int64_t first_token, int64_t rows, float* scratch,
                 float* x) {
  HWY_DYNAMIC_DISPATCH(CorrectRowsImpl)(weights, first_token, rows, scratch, x);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
