// Packed weights times few vectors, bound by memory bandwidth.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/packed_mat_vec.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// Weights are read once, from memory: the hardware's prefetcher stops at every 4 KiB page, so it gets help.
constexpr int64_t kPrefetchBytes = 4096;

// 64 outputs of kRows rows, in strips of one or two vectors per accumulator.
template <DataType kType, int kRows>
HWY_INLINE void MatVecBlock(const void* weights, int64_t k_padded, const float* x, float* sums_out) {
  const FullF32 d;
  constexpr size_t kBlock = 64;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kMaxVectors = kBlock / (hn::MaxLanes(FullF32()) < 4 ? 1 : hn::MaxLanes(FullF32()));
  hn::Vec<FullF32> sums[kRows][kMaxVectors];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  if constexpr (kType == DataType::kF32) {
    const auto* w = static_cast<const float*>(weights);
    for (int64_t k = 0; k < k_padded; ++k, w += kBlock) {
      for (size_t line = 0; line < kBlock * sizeof(float); line += 64) {
        hwy::Prefetch(reinterpret_cast<const std::byte*>(w) + kPrefetchBytes + line);
      }
      for (size_t v = 0; v < kMaxVectors; ++v) {
        const auto weight = hn::LoadU(d, w + v * lanes);
        for (int r = 0; r < kRows; ++r) {
          sums[r][v] = hn::MulAdd(weight, hn::Set(d, x[r * k_padded + k]), sums[r][v]);
        }
      }
    }
  } else {
    const hn::RebindToUnsigned<FullF32> d32;
    const auto upper = hn::Set(d32, 0xFFFF0000u);
    const auto* w =
        static_cast<const uint32_t*>(weights);  // a pair of bf16: k in the lower half, k + 1 above
    for (int64_t k = 0; k < k_padded; k += 2, w += kBlock) {
      for (size_t line = 0; line < kBlock * sizeof(uint32_t); line += 64) {
        hwy::Prefetch(reinterpret_cast<const std::byte*>(w) + kPrefetchBytes + line);
      }
      for (size_t v = 0; v < kMaxVectors; ++v) {
        const auto pairs = hn::LoadU(d32, w + v * lanes);
        const auto even = hn::BitCast(d, hn::ShiftLeft<16>(pairs)),
                   odd = hn::BitCast(d, hn::And(pairs, upper));
        for (int r = 0; r < kRows; ++r) {
          sums[r][v] = hn::MulAdd(even, hn::Set(d, x[r * k_padded + k]), sums[r][v]);
          sums[r][v] = hn::MulAdd(odd, hn::Set(d, x[r * k_padded + k + 1]), sums[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kMaxVectors; ++v) hn::StoreU(sums[r][v], d, sums_out + r * kBlock + v * lanes);
  }
}

template <DataType kType>
void PackedMatVecOf(const void* weights, int64_t k_padded, int64_t n, const float* x, int64_t rows,
                    bool accumulate, float* out, int64_t out_stride) {
  constexpr int64_t kBlock = 64;
  HWY_ALIGN float sums[kMaxMatVecRows * kBlock];
  for (int64_t n0 = 0; n0 < n; n0 += kBlock) {
    const void* block = static_cast<const std::byte*>(weights) + n0 * k_padded * SizeOf(kType);
    if (rows == 1) MatVecBlock<kType, 1>(block, k_padded, x, sums);
    if (rows == 2) MatVecBlock<kType, 2>(block, k_padded, x, sums);
    if (rows == 3) MatVecBlock<kType, 3>(block, k_padded, x, sums);
    if (rows == 4) MatVecBlock<kType, 4>(block, k_padded, x, sums);
    for (int64_t r = 0; r < rows; ++r) {
      float* target = out + r * out_stride + n0;
      for (int64_t j = 0; j < std::min(kBlock, n - n0); ++j) {
        target[j] = sums[r * kBlock + j] + (accumulate ? target[j] : 0.0f);
      }
    }
  }
}

void PackedMatVecImpl(const void* weights, DataType dtype, int64_t k_padded, int64_t n, const float* x,
                      int64_t rows, bool accumulate, float* out, int64_t out_stride) {
  if (dtype == DataType::kBF16) {
    PackedMatVecOf<DataType::kBF16>(weights, k_padded, n, x, rows, accumulate, out, out_stride);
  } else {
    PackedMatVecOf<DataType::kF32>(weights, k_padded, n, x, rows, accumulate, out, out_stride);
  }
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(PackedMatVecImpl);

void PackedMatVec(const void* weights, DataType dtype, int64_t k_padded, int64_t n, const float* x,
                  int64_t rows, bool accumulate, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(PackedMatVecImpl)(weights, dtype, k_padded, n, x, rows, accumulate, out, out_stride);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
