// AVX512-VNNI, for which Highway 1.0.3 has no operation: intrinsics, compiled for it and called where the
// processor has it.
#include "kernels/cpu/linear/code_products.h"

#include <cstring>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own headers pass undefined vectors where a mask takes all lanes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "kernels/cpu/machine/instruction_set.h"

#define KVBLEND_VNNI_ATTR __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace kvblend::kernels::simd {
namespace {

constexpr int64_t kLanes = 16;
// Vectors of outputs that are computed at a time. With kCodeRows rows, sums of codes and sums of groups take
// 24 of 32 registers.
constexpr int kVectors = 2;

KVBLEND_VNNI_ATTR inline __m512i BroadcastCodes(const int8_t* codes) {
  int32_t word;
  std::memcpy(&word, codes, sizeof(word));
  return _mm512_set1_epi32(word);
}

// block, out: of the first output
template <int kWords>
KVBLEND_VNNI_ATTR void MultiplyVectors(const RowCodes& rows, const BlockCodes& block, int64_t first_group,
                                       int64_t num_groups, bool accumulate, float* out, int64_t out_stride) {
  const int64_t groups = rows.groups();
  __m512 totals[kCodeRows][kVectors];
  for (int r = 0; r < kCodeRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      totals[r][v] = accumulate ? _mm512_loadu_ps(out + r * out_stride + v * kLanes) : _mm512_setzero_ps();
    }
  }
  for (int64_t group = first_group; group < first_group + num_groups; ++group) {
    __m512i products[kCodeRows][kVectors];
    for (int r = 0; r < kCodeRows; ++r) {
      for (int v = 0; v < kVectors; ++v) products[r][v] = _mm512_setzero_si512();
    }
    const uint32_t* words = block.codes + group * kWords * kPackedBlock;
    const int8_t* codes = rows.codes + group * kWords * kCodesPerWord;
    for (int word = 0; word < kWords; ++word) {
      __m512i weights[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        weights[v] = _mm512_loadu_si512(words + word * kPackedBlock + v * kLanes);
      }
      for (int r = 0; r < kCodeRows; ++r) {
        const __m512i x = BroadcastCodes(codes + r * rows.cols + word * kCodesPerWord);
        for (int v = 0; v < kVectors; ++v) {
          products[r][v] = _mm512_dpbusd_epi32(products[r][v], weights[v], x);
        }
      }
    }
    __m512 steps[kVectors], minimums[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      steps[v] = _mm512_loadu_ps(block.steps + group * kPackedBlock + v * kLanes);
      minimums[v] = _mm512_loadu_ps(block.minimums + group * kPackedBlock + v * kLanes);
    }
    for (int r = 0; r < kCodeRows; ++r) {
      const __m512 step = _mm512_set1_ps(rows.steps[r * groups + group]),
                   sum = _mm512_set1_ps(rows.sums[r * groups + group]);
      for (int v = 0; v < kVectors; ++v) {
        const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(products[r][v]), steps[v]);
        totals[r][v] = _mm512_fmadd_ps(minimums[v], sum, _mm512_fmadd_ps(product, step, totals[r][v]));
      }
    }
  }
  for (int r = 0; r < kCodeRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_storeu_ps(out + r * out_stride + v * kLanes, totals[r][v]);
    }
  }
}

}  // namespace

bool HasCodeProducts() {
  static const bool has =
      __builtin_cpu_supports("avx512vnni") && AllowedInstructionSet() >= InstructionSet::kAvx512;
  return has;
}

void MultiplyCodes(const RowCodes& rows, const BlockCodes& block, int64_t first_group, int64_t num_groups,
                   bool accumulate, float* out, int64_t out_stride) {
  constexpr int64_t kOutputs = kVectors * kLanes;
  for (int64_t output = 0; output < kPackedBlock; output += kOutputs) {
    const auto multiply = rows.group == 32 ? &MultiplyVectors<8> : &MultiplyVectors<4>;
    multiply(rows, block.Output(output), first_group, num_groups, accumulate, out + output, out_stride);
  }
}

}  // namespace kvblend::kernels::simd

#else

namespace kvblend::kernels::simd {

bool HasCodeProducts() { return false; }
void MultiplyCodes(const RowCodes&, const BlockCodes&, int64_t, int64_t, bool, float*, int64_t) {}

}  // namespace kvblend::kernels::simd
#endif
