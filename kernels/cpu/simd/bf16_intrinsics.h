// What the files share that multiply with AVX512-BF16, for which Highway 1.0.3 has no target: they are
// compiled for it by attributes and called where HasBf16Dots(). For x86-64 only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own headers pass undefined vectors where a mask takes all lanes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/simd/few_rows.h"

#define KVBLEND_BF16_ATTR __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))

namespace kvblend::kernels::simd {

inline constexpr int64_t kF32Lanes = 16;
inline constexpr int kMaxGroup = 4;  // heads at a time

KVBLEND_BF16_ATTR inline __mmask16 FirstLanes(int64_t count) {
  return static_cast<__mmask16>((1u << std::min(count, kF32Lanes)) - 1);
}

/// Two neighbours' weights per word, rounded to bf16; the last one's is zero when num_keys is odd.
KVBLEND_BF16_ATTR inline void PairWeights(const float* weights, int64_t num_keys, uint32_t* pairs) {
  for (int64_t j = 0; j < num_keys; j += kF32Lanes) {
    const __m512 values = _mm512_maskz_loadu_ps(FirstLanes(num_keys - j), weights + j);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(pairs + j / 2), (__m256i)_mm512_cvtneps_pbh(values));
  }
}

}  // namespace kvblend::kernels::simd
