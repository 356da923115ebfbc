// Learned corrections of stored rows with AVX512-BF16: decoded, corrected and rounded without a detour over f32 rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/correct_kv_bf16.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/stored_rows-inl.h"
// clang-format on
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd/simd.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

#if KVBLEND_BF16_WORDS

constexpr int64_t kLanes = 16;
constexpr int64_t kChannels = 32;  // of one vector of pairs

HWY_INLINE __m512bh Broadcast(uint32_t word) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(word)); }

// The channels of kRows tokens from `row` on as pairs in bf16, K's and then V's. x: [kRows][row_stride / 2]
template <KvEncoding kEncoding, int kRows>
HWY_INLINE void DecodeRows(const StoredRows& k, const StoredRows& v, int64_t row, int64_t cols, int64_t words,
                           uint32_t* x) {
  for (int64_t pair = 0; pair < cols / 2; pair += kLanes) {
    const ChannelScales<kEncoding> scales(k, pair);
    for (int i = 0; i < kRows; ++i) {
      const Pairs values = scales.Load(k.codes + (row + i) * k.row_bytes, pair);
      _mm512_storeu_si512(x + i * words + pair, RoundedByHardware(values).raw);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int64_t pair = 0; pair < cols / 2; pair += kLanes) {
      uint32_t* const out = x + i * words + cols / 2 + pair;
      if constexpr (kEncoding == KvEncoding::kBF16) {
        _mm512_storeu_si512(out, LoadBf16Words(v.codes + (row + i) * v.row_bytes, pair).raw);
      } else {
        _mm512_storeu_si512(out, RoundedByHardware(ScaledValues<kEncoding>(v, row + i, pair)).raw);
      }
    }
  }
}

// Stored rows come from main memory, a few from each of two sections at a time, which the processor's own prefetching
// does not follow: while a block's products are computed, the codes of one further on are fetched.
template <int kRows>
class RowFetcher {
 public:
  RowFetcher(const StoredRows& k, const StoredRows& v, int64_t row)
      : k_(k.codes + (row + kBlocksAhead * kRows) * k.row_bytes),
        v_(v.codes + (row + kBlocksAhead * kRows) * v.row_bytes),
        bytes_(kRows * k.row_bytes) {}
  /// Step `step` of `steps`, which together fetch all.
  HWY_INLINE void Step(int64_t step, int64_t steps) const {
    const int64_t end = (step + 1) * bytes_ / steps;
    for (int64_t byte = (step * bytes_ / steps + kLine - 1) / kLine * kLine; byte < end; byte += kLine) {
      hwy::Prefetch(k_ + byte);
      hwy::Prefetch(v_ + byte);
    }
  }

 private:
  static constexpr int64_t kBlocksAhead = 2, kLine = 64;
  const std::byte *k_, *v_;
  const int64_t bytes_;
};

// inner = x down, as pairs. inner: [kRows][rank / 2]
template <int kRows>
HWY_INLINE void ProjectRows(const CorrectionWeights& weights, const RowFetcher<kRows>& fetcher,
                            const uint32_t* x, uint32_t* inner) {
  // Two sums per row, or the products would wait for each other.
  constexpr int64_t kUnroll = 2, kStep = 8;
  const int64_t words = weights.row_stride / 2, count = weights.channels / 2;  // a multiple of kStep
  for (int64_t j = 0; j < weights.rank; j += kLanes) {
    __m512 sums[kUnroll][kRows];
    for (int i = 0; i < kRows; ++i) sums[0][i] = sums[1][i] = _mm512_setzero_ps();
    const uint32_t* down = weights.down_pairs + j;
    for (int64_t begin = 0; begin < count; begin += kStep) {
      if (j == 0) fetcher.Step(begin / kStep, count / kStep);
      for (int64_t c = begin; c < begin + kStep; c += kUnroll) {
        for (int64_t u = 0; u < kUnroll; ++u, down += weights.rank) {
          const auto w = (__m512bh)_mm512_loadu_si512(down);
          for (int i = 0; i < kRows; ++i) {
            sums[u][i] = _mm512_dpbf16_ps(sums[u][i], Broadcast(x[i * words + c + u]), w);
          }
        }
      }
    }
    for (int i = 0; i < kRows; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(inner + (i * weights.rank + j) / 2),
                          (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(sums[0][i], sums[1][i])));
    }
  }
}

// Channels [channel, channel + kChannels) of scale * x + offset + inner up, rounded. offsets: of each row
template <int kRows>
HWY_INLINE void ExpandChannels(const CorrectionWeights& weights, const float* const* offsets,
                               const uint32_t* x, const uint32_t* inner, int64_t channel, uint16_t* out,
                               int64_t out_stride) {
  const int64_t stride = weights.row_stride, rank_words = weights.rank / 2;
  __m512 low[kRows], high[kRows];
  const auto start = [&](int64_t c, __m256i of_row, const float* offset) KVBLEND_BF16_ATTR {
    const __m512 value = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(of_row), 16));
    return _mm512_fmadd_ps(_mm512_loadu_ps(weights.scale + c), value, _mm512_loadu_ps(offset + c));
  };
  for (int i = 0; i < kRows; ++i) {
    const auto* of_row = reinterpret_cast<const __m256i*>(x + i * (stride / 2) + channel / 2);
    low[i] = start(channel, _mm256_loadu_si256(of_row), offsets[i]);
    high[i] = start(channel + kLanes, _mm256_loadu_si256(of_row + 1), offsets[i]);
  }
  // Without a map, of rank 0, up_pairs is null, to which nothing may be added.
  for (int64_t j = 0; j < rank_words; ++j) {
    const uint32_t* up = weights.up_pairs + j * stride + channel;
    const auto up_low = (__m512bh)_mm512_loadu_si512(up), up_high = (__m512bh)_mm512_loadu_si512(up + kLanes);
    for (int i = 0; i < kRows; ++i) {
      const __m512bh value = Broadcast(inner[i * rank_words + j]);
      low[i] = _mm512_dpbf16_ps(low[i], value, up_low);
      high[i] = _mm512_dpbf16_ps(high[i], value, up_high);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    _mm512_storeu_si512(out + i * out_stride, (__m512i)_mm512_cvtne2ps_pbh(high[i], low[i]));
  }
}

template <KvEncoding kEncoding, int kRows>
void CorrectBlock(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                  const StoredRows& v, int64_t row, int64_t cols, uint32_t* scratch, uint16_t* k_out,
                  uint16_t* v_out) {
  uint32_t* const inner = scratch + kRows * weights.row_stride / 2;
  DecodeRows<kEncoding, kRows>(k, v, row, cols, weights.row_stride / 2, scratch);
  ProjectRows<kRows>(weights, {k, v, row}, scratch, inner);
  const float* offsets[kRows];
  for (int i = 0; i < kRows; ++i) offsets[i] = weights.offset_of(first_token + row + i);
  for (int64_t c = 0; c < cols; c += kChannels) {
    ExpandChannels<kRows>(weights, offsets, scratch, inner, c, k_out + row * cols + c, cols);
    ExpandChannels<kRows>(weights, offsets, scratch, inner, cols + c, v_out + row * cols + c, cols);
  }
}

template <KvEncoding kEncoding>
void CorrectGroupOf(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                    const StoredRows& v, int64_t cols, uint32_t* scratch, uint16_t* k_out, uint16_t* v_out) {
  int64_t row = 0;
  for (; row + kCorrectionBlock <= k.rows; row += kCorrectionBlock) {
    CorrectBlock<kEncoding, kCorrectionBlock>(weights, first_token, k, v, row, cols, scratch, k_out, v_out);
  }
  for (; row < k.rows; ++row) {
    CorrectBlock<kEncoding, 1>(weights, first_token, k, v, row, cols, scratch, k_out, v_out);
  }
}

void CorrectGroupImpl(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                      const StoredRows& v, int64_t cols, uint32_t* scratch, uint16_t* k_out,
                      uint16_t* v_out) {
  switch (k.encoding) {
    case KvEncoding::kInt8:
      return CorrectGroupOf<KvEncoding::kInt8>(weights, first_token, k, v, cols, scratch, k_out, v_out);
    case KvEncoding::kInt4:
      return CorrectGroupOf<KvEncoding::kInt4>(weights, first_token, k, v, cols, scratch, k_out, v_out);
    case KvEncoding::kFp8:
      return CorrectGroupOf<KvEncoding::kFp8>(weights, first_token, k, v, cols, scratch, k_out, v_out);
    default:
      return CorrectGroupOf<KvEncoding::kBF16>(weights, first_token, k, v, cols, scratch, k_out, v_out);
  }
}

#else

void CorrectGroupImpl(const CorrectionWeights&, int64_t, const StoredRows&, const StoredRows&, int64_t,
                      uint32_t*, uint16_t*, uint16_t*) {}

#endif  // KVBLEND_BF16_WORDS

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(CorrectGroupImpl);

void CorrectGroupBf16(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                      const StoredRows& v, int64_t cols, uint32_t* scratch, uint16_t* k_out,
                      uint16_t* v_out) {
  HWY_DYNAMIC_DISPATCH(CorrectGroupImpl)(weights, first_token, k, v, cols, scratch, k_out, v_out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
