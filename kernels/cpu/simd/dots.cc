// Products for few rows, bound by memory bandwidth: decode attention and matrix times few vectors.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/dots.cc"
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

// kGroup heads at once, so that every key is loaded once for all of them.
template <DataType kKeys, int kGroup>
HWY_INLINE void KeyDotsGroup(const float* q, const void* keys, int64_t num_keys, int64_t head_dim,
                             float* scores, int64_t stride) {
  const FullF32 d;
  const OneF32 one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t j = 0; j < num_keys; ++j) {
    hn::Vec<FullF32> sums[kGroup];
    for (int g = 0; g < kGroup; ++g) sums[g] = hn::Zero(d);
    float tails[kGroup] = {};
    int64_t i = 0;
    for (; i + lanes <= head_dim; i += lanes) {
      const auto key = LoadF32<kKeys>(d, keys, j * head_dim + i);
      for (int g = 0; g < kGroup; ++g) sums[g] = hn::MulAdd(key, hn::LoadU(d, q + g * head_dim + i), sums[g]);
    }
    for (; i < head_dim; ++i) {
      const float key = hn::GetLane(LoadF32<kKeys>(one, keys, j * head_dim + i));
      for (int g = 0; g < kGroup; ++g) tails[g] += key * q[g * head_dim + i];
    }
    for (int g = 0; g < kGroup; ++g) scores[g * stride + j] = Sum(d, sums[g]) + tails[g];
  }
}

template <DataType kKeys>
void KeyDotsOf(const float* q, int64_t group, const void* keys, int64_t num_keys, int64_t head_dim,
               float* scores, int64_t stride) {
  int64_t g = 0;
  for (; g + 4 <= group; g += 4) {
    KeyDotsGroup<kKeys, 4>(q + g * head_dim, keys, num_keys, head_dim, scores + g * stride, stride);
  }
  q += g * head_dim;
  scores += g * stride;
  if (group - g == 3) KeyDotsGroup<kKeys, 3>(q, keys, num_keys, head_dim, scores, stride);
  if (group - g == 2) KeyDotsGroup<kKeys, 2>(q, keys, num_keys, head_dim, scores, stride);
  if (group - g == 1) KeyDotsGroup<kKeys, 1>(q, keys, num_keys, head_dim, scores, stride);
}

void KeyDotsImpl(const float* q, int64_t group, const void* keys, DataType dtype, int64_t num_keys,
                 int64_t head_dim, float* scores, int64_t stride) {
  KVBLEND_FOR_DTYPE(dtype, KeyDotsOf<kType>(q, group, keys, num_keys, head_dim, scores, stride));
}

// Columns [i, i + lanes) of kGroup sums over all keys; the values of a block stay in the first-level cache.
template <DataType kValues, int kGroup, class D>
HWY_INLINE void AddWeightedColumns(D d, const float* weights, int64_t stride, const void* values,
                                   int64_t num_keys, int64_t head_dim, int64_t i, float* out) {
  hn::Vec<D> sums[kGroup];
  for (int g = 0; g < kGroup; ++g) sums[g] = hn::LoadU(d, out + g * head_dim + i);
  for (int64_t j = 0; j < num_keys; ++j) {
    const auto value = LoadF32<kValues>(d, values, j * head_dim + i);
    for (int g = 0; g < kGroup; ++g)
      sums[g] = hn::MulAdd(hn::Set(d, weights[g * stride + j]), value, sums[g]);
  }
  for (int g = 0; g < kGroup; ++g) hn::StoreU(sums[g], d, out + g * head_dim + i);
}

template <DataType kValues, int kGroup>
HWY_INLINE void AddWeightedGroup(const float* weights, int64_t stride, const void* values, int64_t num_keys,
                                 int64_t head_dim, float* out) {
  ForEach(head_dim, [&](auto d, size_t i) HWY_ATTR {
    AddWeightedColumns<kValues, kGroup>(d, weights, stride, values, num_keys, head_dim, i, out);
  });
}

template <DataType kValues>
void AddWeightedValuesOf(const float* weights, int64_t stride, int64_t group, const void* values,
                         int64_t num_keys, int64_t head_dim, float* out) {
  int64_t g = 0;
  for (; g + 4 <= group; g += 4) {
    AddWeightedGroup<kValues, 4>(weights + g * stride, stride, values, num_keys, head_dim,
                                 out + g * head_dim);
  }
  weights += g * stride;
  out += g * head_dim;
  if (group - g == 3) AddWeightedGroup<kValues, 3>(weights, stride, values, num_keys, head_dim, out);
  if (group - g == 2) AddWeightedGroup<kValues, 2>(weights, stride, values, num_keys, head_dim, out);
  if (group - g == 1) AddWeightedGroup<kValues, 1>(weights, stride, values, num_keys, head_dim, out);
}

void AddWeightedValuesImpl(const float* weights, int64_t stride, int64_t group, const void* values,
                           DataType dtype, int64_t num_keys, int64_t head_dim, float* out) {
  KVBLEND_FOR_DTYPE(dtype,
                    AddWeightedValuesOf<kType>(weights, stride, group, values, num_keys, head_dim, out));
}

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

HWY_EXPORT(KeyDotsImpl);
HWY_EXPORT(AddWeightedValuesImpl);
HWY_EXPORT(PackedMatVecImpl);

void KeyDots(const float* q, int64_t group, const void* keys, DataType dtype, int64_t num_keys,
             int64_t head_dim, float* scores, int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(KeyDotsImpl)(q, group, keys, dtype, num_keys, head_dim, scores, scores_stride);
}
void AddWeightedValues(const float* weights, int64_t weights_stride, int64_t group, const void* values,
                       DataType dtype, int64_t num_keys, int64_t head_dim, float* out) {
  HWY_DYNAMIC_DISPATCH(AddWeightedValuesImpl)
  (weights, weights_stride, group, values, dtype, num_keys, head_dim, out);
}
void PackedMatVec(const void* weights, DataType dtype, int64_t k_padded, int64_t n, const float* x,
                  int64_t rows, bool accumulate, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(PackedMatVecImpl)(weights, dtype, k_padded, n, x, rows, accumulate, out, out_stride);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
