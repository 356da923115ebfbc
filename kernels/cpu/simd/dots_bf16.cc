// The products of decode attention over rows, with AVX512-BF16.
#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "kernels/cpu/simd/simd.h"

#if defined(__x86_64__)
#include "kernels/cpu/machine/instruction_set.h"
#include "kernels/cpu/simd/bf16_intrinsics.h"

namespace kvblend::kernels::simd {
namespace {

constexpr int64_t kElements = 32;  // bf16 per vector

// Sums of quarters of four vectors: lane 4 l + i has that of v[i]'s lanes 4 l .. 4 l + 3.
KVBLEND_BF16_ATTR inline __m512 SumsOfFour(const __m512 (&v)[4]) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1])),
               cd = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
  const __m512d abd = _mm512_castps_pd(ab), cdd = _mm512_castps_pd(cd);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(abd, cdd)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(abd, cdd)));
}

// The sums of sixteen vectors from what SumsOfFour made of them.
KVBLEND_BF16_ATTR inline __m512 SumsOfSixteen(const __m512 (&fours)[4]) {
  const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(fours[0], fours[1], 0x88),
                                   _mm512_shuffle_f32x4(fours[0], fours[1], 0xDD)),
               high = _mm512_add_ps(_mm512_shuffle_f32x4(fours[2], fours[3], 0x88),
                                    _mm512_shuffle_f32x4(fours[2], fours[3], 0xDD));
  return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xDD));
}

// Fetches what is read after the row `offset` elements behind `rows`.
inline void PrefetchRow(const uint16_t* rows, const void* next, int64_t offset, int64_t head_dim) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(uint16_t));
  PrefetchAhead(rows, next, offset * kBytes, head_dim * kBytes);
}

KVBLEND_BF16_ATTR inline __m512bh LoadBf16(const uint16_t* data) {
  return (__m512bh)_mm512_loadu_si512(data);
}

// kBlocks times kElements columns, kGroup heads: sums of weight times value, in the order in which two keys'
// values interleave. Whole rows where registers allow, so that memory is read from front to back.
template <int kGroup, int kBlocks>
KVBLEND_BF16_ATTR void AddColumns(const uint32_t* pairs, int64_t pairs_stride, const uint16_t* values,
                                  const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  __m512 low[kGroup][kBlocks], high[kGroup][kBlocks];
  for (int g = 0; g < kGroup; ++g) {
    for (int b = 0; b < kBlocks; ++b) low[g][b] = high[g][b] = _mm512_setzero_ps();
  }
  for (int64_t j = 0; j < num_keys; j += 2) {
    for (int64_t key = j; key < j + 2; ++key) {
      PrefetchRow(values, next, key * head_dim, head_dim);
    }
    __m512bh weights[kGroup];
    for (int g = 0; g < kGroup; ++g) {
      weights[g] = (__m512bh)_mm512_set1_epi32(static_cast<int>(pairs[g * pairs_stride + j / 2]));
    }
    for (int b = 0; b < kBlocks; ++b) {
      const uint16_t* block = values + j * head_dim + b * kElements;
      const __m512i even = _mm512_loadu_si512(block);
      const __m512i odd = j + 1 < num_keys ? _mm512_loadu_si512(block + head_dim) : _mm512_setzero_si512();
      const auto first = (__m512bh)_mm512_unpacklo_epi16(even, odd),
                 second = (__m512bh)_mm512_unpackhi_epi16(even, odd);
      for (int g = 0; g < kGroup; ++g) {
        low[g][b] = _mm512_dpbf16_ps(low[g][b], first, weights[g]);
        high[g][b] = _mm512_dpbf16_ps(high[g][b], second, weights[g]);
      }
    }
  }
  // 128 bits of a pair of interleaved vectors hold dims 8 b .. 8 b + 3, and 8 b + 4 .. 8 b + 7.
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  for (int g = 0; g < kGroup; ++g) {
    for (int b = 0; b < kBlocks; ++b) {
      const __m512 dims[] = {_mm512_permutex2var_ps(low[g][b], first, high[g][b]),
                             _mm512_permutex2var_ps(low[g][b], second, high[g][b])};
      for (int half = 0; half < 2; ++half) {
        float* at = out + g * head_dim + b * kElements + half * kF32Lanes;
        _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), dims[half]));
      }
    }
  }
}

template <int kGroup>
KVBLEND_BF16_ATTR void AddValuesOf(const uint32_t* pairs, int64_t pairs_stride, const uint16_t* values,
                                   const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  constexpr int kBlocks = kGroup <= 3 ? 4 : 2;  // at most 24 of 32 registers are sums
  int64_t column = 0;
  const auto add = [&](auto blocks) KVBLEND_BF16_ATTR {
    AddColumns<kGroup, blocks()>(pairs, pairs_stride, values + column, column == 0 ? next : values, num_keys,
                                 head_dim, out + column);
    column += blocks() * kElements;
  };
  while (head_dim - column >= kBlocks * kElements) add(std::integral_constant<int, kBlocks>());
  if (head_dim - column >= 2 * kElements) add(std::integral_constant<int, 2>());
  if (head_dim - column >= kElements) add(std::integral_constant<int, 1>());
}

// Four keys at a time, so that their products with kGroup heads, and what is left of the keys before, stay in
// registers.
template <int kGroup>
KVBLEND_BF16_ATTR void KeyDotsOf(const uint16_t* q, const uint16_t* keys, const void* next, int64_t num_keys,
                                 int64_t head_dim, float* scores, int64_t stride) {
  for (int64_t key = 0; key < num_keys; key += kF32Lanes) {
    const int64_t count = std::min(kF32Lanes, num_keys - key);
    __m512 fours[kGroup][4];
    for (int four = 0; four < 4; ++four) {
      const uint16_t* rows[4];
      for (int j = 0; j < 4; ++j) {
        const int64_t offset = (key + std::min<int64_t>(4 * four + j, count - 1)) * head_dim;
        rows[j] = keys + offset;
        PrefetchRow(keys, next, offset, head_dim);
      }
      __m512 sums[kGroup][4];
      for (int g = 0; g < kGroup; ++g) {
        for (int j = 0; j < 4; ++j) sums[g][j] = _mm512_setzero_ps();
      }
      for (int64_t i = 0; i < head_dim; i += kElements) {
        for (int j = 0; j < 4; ++j) {
          const __m512bh row = LoadBf16(rows[j] + i);
          for (int g = 0; g < kGroup; ++g) {
            sums[g][j] = _mm512_dpbf16_ps(sums[g][j], LoadBf16(q + g * head_dim + i), row);
          }
        }
      }
      for (int g = 0; g < kGroup; ++g) fours[g][four] = SumsOfFour(sums[g]);
    }
    const auto mask = static_cast<__mmask16>((1u << count) - 1);
    for (int g = 0; g < kGroup; ++g) {
      _mm512_mask_storeu_ps(scores + g * stride + key, mask, SumsOfSixteen(fours[g]));
    }
  }
}

}  // namespace

bool HasBf16Dots() {
  static const bool has =
      __builtin_cpu_supports("avx512bf16") && AllowedInstructionSet() >= InstructionSet::kAvx512;
  return has;
}

// Heads behind the first ones find the rows in the caches, and fetch nothing but them.
void KeyDotsBf16(const void* q, int64_t group, const void* keys, const void* next, int64_t num_keys,
                 int64_t head_dim, float* scores, int64_t scores_stride) {
  ForHeads<kMaxGroup>(group, [&](auto heads, int64_t g) {
    KeyDotsOf<heads()>(static_cast<const uint16_t*>(q) + g * head_dim, static_cast<const uint16_t*>(keys),
                       g == 0 ? next : keys, num_keys, head_dim, scores + g * scores_stride, scores_stride);
  });
}

void AddWeightedValuesBf16(const float* weights, int64_t weights_stride, int64_t group, const void* values,
                           const void* next, int64_t num_keys, int64_t head_dim, float* out) {
  constexpr int64_t kMaxKeys = 128, kPairs = kMaxKeys / 2;
  for (int64_t key = 0; key < num_keys; key += kMaxKeys) {
    const int64_t count = std::min(kMaxKeys, num_keys - key);
    const auto* rows = static_cast<const uint16_t*>(values) + key * head_dim;
    const auto* next_rows = next == nullptr ? nullptr : static_cast<const uint16_t*>(next) + key * head_dim;
    ForHeads<kMaxGroup>(group, [&](auto heads, int64_t g) {
      uint32_t pairs[heads() * kPairs];
      for (int64_t h = 0; h < heads(); ++h) {
        PairWeights(weights + (g + h) * weights_stride + key, count, pairs + h * kPairs);
      }
      AddValuesOf<heads()>(pairs, kPairs, rows, g == 0 ? next_rows : rows, count, head_dim,
                           out + g * head_dim);
    });
  }
}

}  // namespace kvblend::kernels::simd

#else

namespace kvblend::kernels::simd {

bool HasBf16Dots() { return false; }
void KeyDotsBf16(const void*, int64_t, const void*, const void*, int64_t, int64_t, float*, int64_t) {}
void AddWeightedValuesBf16(const float*, int64_t, int64_t, const void*, const void*, int64_t, int64_t,
                           float*) {}

}  // namespace kvblend::kernels::simd
#endif
