// The products of decode attention over tiles of pages, with AVX512-BF16. A tile is read from front to back,
// and the sums of all its keys, or of all columns, stay in registers: no sum over lanes, no interleaving.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd/simd.h"
#include "kernels/tensor.h"

#if defined(__x86_64__)
#include "kernels/cpu/simd/bf16_intrinsics.h"

namespace kvblend::kernels::simd {
namespace {

constexpr int64_t kWordBytes = sizeof(uint32_t);

template <int kGroup>
KVBLEND_BF16_ATTR void KeyDotsOf(const uint32_t* q, const uint32_t* tile, const std::byte* next,
                                 int64_t num_keys, int64_t steps, float* scores, int64_t stride) {
  constexpr int kVectors = kPageTile / kF32Lanes;
  __m512 sums[kGroup][kVectors];
  for (int g = 0; g < kGroup; ++g) {
    for (int v = 0; v < kVectors; ++v) sums[g][v] = _mm512_setzero_ps();
  }
  for (int64_t step = 0; step < steps; ++step, tile += kPageTile) {
    if (next != nullptr) PrefetchBytes(next + step * kPageTile * kWordBytes, kPageTile * kWordBytes);
    __m512bh keys[kVectors];
    for (int v = 0; v < kVectors; ++v) keys[v] = (__m512bh)_mm512_loadu_si512(tile + v * kF32Lanes);
    for (int g = 0; g < kGroup; ++g) {
      const auto query = (__m512bh)_mm512_set1_epi32(static_cast<int>(q[g * steps + step]));
      for (int v = 0; v < kVectors; ++v) sums[g][v] = _mm512_dpbf16_ps(sums[g][v], query, keys[v]);
    }
  }
  for (int v = 0; v < kVectors && v * kF32Lanes < num_keys; ++v) {
    const __mmask16 mask = FirstLanes(num_keys - v * kF32Lanes);
    for (int g = 0; g < kGroup; ++g) {
      _mm512_mask_storeu_ps(scores + g * stride + v * kF32Lanes, mask, sums[g][v]);
    }
  }
}

// Columns of kVectors vectors: out += weights * values.
template <int kGroup, int kVectors>
KVBLEND_BF16_ATTR void AddColumns(const uint32_t* pairs, int64_t pairs_stride, const uint32_t* values,
                                  const std::byte* next, int64_t num_keys, int64_t head_dim, float* out) {
  __m512 sums[kGroup][kVectors];
  for (int g = 0; g < kGroup; ++g) {
    for (int v = 0; v < kVectors; ++v) sums[g][v] = _mm512_loadu_ps(out + g * head_dim + v * kF32Lanes);
  }
  const auto add = [&](int64_t pair, __m512i used) KVBLEND_BF16_ATTR {
    __m512bh weights[kGroup];
    for (int g = 0; g < kGroup; ++g) {
      weights[g] = (__m512bh)_mm512_set1_epi32(static_cast<int>(pairs[g * pairs_stride + pair]));
    }
    for (int v = 0; v < kVectors; ++v) {
      const __m512i words = _mm512_loadu_si512(values + pair * head_dim + v * kF32Lanes);
      const auto both = (__m512bh)_mm512_and_si512(words, used);
      for (int g = 0; g < kGroup; ++g) sums[g][v] = _mm512_dpbf16_ps(sums[g][v], both, weights[g]);
    }
  };
  for (int64_t pair = 0; pair < num_keys / 2; ++pair) {
    if (next != nullptr) PrefetchBytes(next + pair * head_dim * kWordBytes, head_dim * kWordBytes);
    add(pair, _mm512_set1_epi32(-1));
  }
  // Nobody need have written what stands beside the last of an odd number of values.
  if (num_keys % 2 != 0) add(num_keys / 2, _mm512_set1_epi32(0xFFFF));
  for (int g = 0; g < kGroup; ++g) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(out + g * head_dim + v * kF32Lanes, sums[g][v]);
  }
}

template <int kGroup>
KVBLEND_BF16_ATTR void AddValuesOf(const uint32_t* pairs, int64_t pairs_stride, const uint32_t* values,
                                   const std::byte* next, int64_t num_keys, int64_t head_dim, float* out) {
  constexpr int kVectors = kGroup <= 3 ? 8 : 4;  // at most 24 of 32 registers are sums
  int64_t column = 0;
  const auto add = [&](auto vectors) KVBLEND_BF16_ATTR {
    AddColumns<kGroup, vectors()>(pairs, pairs_stride, values + column, column == 0 ? next : nullptr,
                                  num_keys, head_dim, out + column);
    column += vectors() * kF32Lanes;
  };
  while (head_dim - column >= kVectors * kF32Lanes) add(std::integral_constant<int, kVectors>());
  if (head_dim - column >= 4 * kF32Lanes) add(std::integral_constant<int, 4>());
  if (head_dim - column >= 2 * kF32Lanes) add(std::integral_constant<int, 2>());
}

}  // namespace

void TileKeyDotsBf16(const void* q, int64_t group, const void* tile, const void* next, int64_t num_keys,
                     int64_t head_dim, float* scores, int64_t scores_stride) {
  const int64_t steps = head_dim / 2;
  ForHeads<kMaxGroup>(group, [&](auto heads, int64_t g) {
    KeyDotsOf<heads()>(static_cast<const uint32_t*>(q) + g * steps, static_cast<const uint32_t*>(tile),
                       g == 0 ? static_cast<const std::byte*>(next) : nullptr, num_keys, steps,
                       scores + g * scores_stride, scores_stride);
  });
}

void AddWeightedTileBf16(const float* weights, int64_t weights_stride, int64_t group, const void* tile,
                         const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  ForHeads<kMaxGroup>(group, [&](auto heads, int64_t g) {
    constexpr int64_t kPairs = kPageTile / 2;
    uint32_t pairs[heads() * kPairs];
    for (int64_t h = 0; h < heads(); ++h) {
      PairWeights(weights + (g + h) * weights_stride, num_keys, pairs + h * kPairs);
    }
    AddValuesOf<heads()>(pairs, kPairs, static_cast<const uint32_t*>(tile),
                         g == 0 ? static_cast<const std::byte*>(next) : nullptr, num_keys, head_dim,
                         out + g * head_dim);
  });
}

}  // namespace kvblend::kernels::simd

#else

namespace kvblend::kernels::simd {

void TileKeyDotsBf16(const void*, int64_t, const void*, const void*, int64_t, int64_t, float*, int64_t) {}
void AddWeightedTileBf16(const float*, int64_t, int64_t, const void*, const void*, int64_t, int64_t, float*) {
}

}  // namespace kvblend::kernels::simd
#endif
