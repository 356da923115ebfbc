// The products of decode attention over rows of keys and of values, in f32.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/dots.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cstddef>

#include "kernels/cpu/simd/few_rows.h"
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// Heads at a time, so that every key and every value is loaded once for all of them. Three heads by four
// keys, or by four vectors of values, are twelve sums, for which sixteen registers have room. Each waits for
// its own last addition, so that with fewer sums the multipliers would idle.
constexpr int kHeads = 3;
constexpr int64_t kKeys = 4;     // at a time
constexpr int64_t kColumns = 4;  // vectors of values at a time

#if HWY_TARGET != HWY_SCALAR
// The four lanes of every 128 bits added up.
template <class D>
HWY_INLINE hn::Vec<hn::CappedTag<float, 4>> AddFours(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<D> half;
    return AddFours(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}
#endif

HWY_INLINE void StoreSumsOfFour(const hn::Vec<FullF32> (&v)[4], float* out) {
  const FullF32 d;
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) out[i] = Sum(d, v[i]);
#else
  const hn::RepartitionToWide<hn::RebindToUnsigned<FullF32>> d64;
  const auto first =
      hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1])));
  const auto second =
      hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3])));
  const auto sums = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, first, second)),
                            hn::BitCast(d, hn::InterleaveUpper(d64, first, second)));
  hn::StoreU(AddFours(d, sums), hn::CappedTag<float, 4>(), out);
#endif
}

template <DataType kKeyType, int kGroup>
HWY_INLINE void KeyDotsGroup(const float* q, const void* keys, const void* next, int64_t num_keys,
                             int64_t head_dim, float* scores, int64_t stride) {
  const FullF32 d;
  const OneF32 one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t bytes = head_dim * SizeOf(kKeyType);
  for (int64_t key = 0; key < num_keys; key += kKeys) {
    const int64_t count = std::min(kKeys, num_keys - key);
    // Past the end the last key is taken again: a key's sum does not depend on the keys beside it.
    int64_t rows[kKeys];
    for (int64_t j = 0; j < kKeys; ++j) {
      rows[j] = (key + std::min(j, count - 1)) * head_dim;
      if (j < count) PrefetchAhead(keys, next, (key + j) * bytes, bytes);
    }
    hn::Vec<FullF32> sums[kGroup][kKeys];
    for (auto& of_head : sums) {
      for (auto& sum : of_head) sum = hn::Zero(d);
    }
    int64_t i = 0;
    for (; i + lanes <= head_dim; i += lanes) {
      hn::Vec<FullF32> queries[kGroup];
      for (int g = 0; g < kGroup; ++g) queries[g] = hn::LoadU(d, q + g * head_dim + i);
      for (int64_t j = 0; j < kKeys; ++j) {
        const auto row = LoadF32<kKeyType>(d, keys, rows[j] + i);
        for (int g = 0; g < kGroup; ++g) sums[g][j] = hn::MulAdd(row, queries[g], sums[g][j]);
      }
    }
    float of_four[kGroup][kKeys];
    for (int g = 0; g < kGroup; ++g) {
      StoreSumsOfFour(sums[g], count == kKeys ? scores + g * stride + key : of_four[g]);
    }
    if (count < kKeys) {
      for (int g = 0; g < kGroup; ++g) std::copy_n(of_four[g], count, scores + g * stride + key);
    }
    if (i == head_dim) continue;
    for (int g = 0; g < kGroup; ++g) {
      for (int64_t j = 0; j < count; ++j) {
        for (int64_t rest = i; rest < head_dim; ++rest) {
          scores[g * stride + key + j] +=
              hn::GetLane(LoadF32<kKeyType>(one, keys, rows[j] + rest)) * q[g * head_dim + rest];
        }
      }
    }
  }
}

template <DataType kKeyType>
void KeyDotsOf(const float* q, int64_t group, const void* keys, const void* next, int64_t num_keys,
               int64_t head_dim, float* scores, int64_t stride) {
  ForHeads<kHeads>(group, [&](auto heads, int64_t g) HWY_ATTR {
    KeyDotsGroup<kKeyType, heads()>(q + g * head_dim, keys, g == 0 ? next : keys, num_keys, head_dim,
                                    scores + g * stride, stride);
  });
}

void KeyDotsImpl(const float* q, int64_t group, const void* keys, DataType dtype, const void* next,
                 int64_t num_keys, int64_t head_dim, float* scores, int64_t stride) {
  KVBLEND_FOR_DTYPE(dtype, KeyDotsOf<kType>(q, group, keys, next, num_keys, head_dim, scores, stride));
}

// Columns [i, i + kVectors * lanes) of kGroup sums over all keys; the values of a block stay in the
// first-level cache.
template <DataType kValueType, int kGroup, int kVectors, class D>
HWY_INLINE void AddWeightedColumns(D d, const float* weights, int64_t stride, const void* values,
                                   const void* next, int64_t num_keys, int64_t head_dim, int64_t i,
                                   float* out) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t bytes = head_dim * SizeOf(kValueType);
  hn::Vec<D> sums[kGroup][kVectors];
  for (int g = 0; g < kGroup; ++g) {
    for (int v = 0; v < kVectors; ++v) sums[g][v] = hn::LoadU(d, out + g * head_dim + i + v * lanes);
  }
  for (int64_t j = 0; j < num_keys; ++j) {
    if (i == 0) PrefetchAhead(values, next, j * bytes, bytes);
    hn::Vec<D> of_key[kGroup];
    for (int g = 0; g < kGroup; ++g) of_key[g] = hn::Set(d, weights[g * stride + j]);
    for (int v = 0; v < kVectors; ++v) {
      const auto value = LoadF32<kValueType>(d, values, j * head_dim + i + v * lanes);
      for (int g = 0; g < kGroup; ++g) sums[g][v] = hn::MulAdd(of_key[g], value, sums[g][v]);
    }
  }
  for (int g = 0; g < kGroup; ++g) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[g][v], d, out + g * head_dim + i + v * lanes);
  }
}

template <DataType kValueType, int kGroup>
HWY_INLINE void AddWeightedGroup(const float* weights, int64_t stride, const void* values, const void* next,
                                 int64_t num_keys, int64_t head_dim, float* out) {
  const FullF32 full;
  const OneF32 one;
  const auto lanes = static_cast<int64_t>(hn::Lanes(full));
  int64_t i = 0;
  for (; i + kColumns * lanes <= head_dim; i += kColumns * lanes) {
    AddWeightedColumns<kValueType, kGroup, kColumns>(full, weights, stride, values, next, num_keys, head_dim,
                                                     i, out);
  }
  for (; i + lanes <= head_dim; i += lanes) {
    AddWeightedColumns<kValueType, kGroup, 1>(full, weights, stride, values, next, num_keys, head_dim, i,
                                              out);
  }
  for (; i < head_dim; ++i) {
    AddWeightedColumns<kValueType, kGroup, 1>(one, weights, stride, values, next, num_keys, head_dim, i, out);
  }
}

template <DataType kValueType>
void AddWeightedValuesOf(const float* weights, int64_t stride, int64_t group, const void* values,
                         const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  ForHeads<kHeads>(group, [&](auto heads, int64_t g) HWY_ATTR {
    AddWeightedGroup<kValueType, heads()>(weights + g * stride, stride, values, g == 0 ? next : values,
                                          num_keys, head_dim, out + g * head_dim);
  });
}

void AddWeightedValuesImpl(const float* weights, int64_t stride, int64_t group, const void* values,
                           DataType dtype, const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  KVBLEND_FOR_DTYPE(
      dtype, AddWeightedValuesOf<kType>(weights, stride, group, values, next, num_keys, head_dim, out));
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(KeyDotsImpl);
HWY_EXPORT(AddWeightedValuesImpl);

void KeyDots(const float* q, int64_t group, const void* keys, DataType dtype, const void* next,
             int64_t num_keys, int64_t head_dim, float* scores, int64_t scores_stride) {
  HWY_DYNAMIC_DISPATCH(KeyDotsImpl)
  (q, group, keys, dtype, next, num_keys, head_dim, scores, scores_stride);
}
void AddWeightedValues(const float* weights, int64_t weights_stride, int64_t group, const void* values,
                       DataType dtype, const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  HWY_DYNAMIC_DISPATCH(AddWeightedValuesImpl)
  (weights, weights_stride, group, values, dtype, next, num_keys, head_dim, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
