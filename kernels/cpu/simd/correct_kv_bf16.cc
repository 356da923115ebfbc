// Learned corrections of stored rows with AVX512-BF16: decoded, corrected and rounded without a detour over
// f32 rows.
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
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd/simd.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

#if KVBLEND_BF16_WORDS

constexpr int64_t kLanes = 16;
constexpr int64_t kChannels = 32;  // of one vector of pairs

HWY_INLINE __m512bh Broadcast(uint32_t word) { return (__m512bh)_mm512_set1_epi32(static_cast<int>(word)); }

// Rows of a block lie in tiles of one vector each, [columns / kWidth][kRows][kWidth] words, so that every
// row's words are at a fixed distance from one pointer.
template <int kRows, int64_t kWidth>
struct Tiles {
  uint32_t* words;
  HWY_INLINE uint32_t* At(int64_t tile, int64_t row) const { return words + (tile * kRows + row) * kWidth; }
};
template <int kRows>
using ChannelTiles = Tiles<kRows, kLanes>;  // pairs of channels, K's and then V's
template <int kRows>
using RankTiles = Tiles<kRows, kLanes / 2>;  // pairs of ranks

// Stored rows of a chunk, of any number of groups. k.steps and k.offsets: of the first row's group
struct ChunkRows {
  const StoredRows &k, &v;
  int64_t first_token;  // of the chunk, where the first row stands

  // Rows from `row` on that have their group's scales in common, `limit` at most.
  int64_t OfOneGroup(int64_t row, int64_t limit) const {
    return std::min(limit, kKvGroup - (first_token + row) % kKvGroup);
  }
  StoredRows KeysOfGroup(int64_t row) const {
    StoredRows keys = k;
    const int64_t scales = ((first_token + row) / kKvGroup - first_token / kKvGroup) * k.scale_cols;
    keys.codes += row * k.row_bytes;
    if (keys.steps != nullptr) keys.steps += scales;
    if (keys.offsets != nullptr) keys.offsets += scales;
    return keys;
  }
};

template <KvEncoding kEncoding, int kRows>
HWY_INLINE void DecodeRows(const ChunkRows& rows, int64_t row, int64_t cols, ChannelTiles<kRows> x) {
  const int64_t tiles = cols / kChannels;
  for (int64_t begin = 0; begin < kRows;) {
    const int64_t end = begin + rows.OfOneGroup(row + begin, kRows - begin);
    const StoredRows k = rows.KeysOfGroup(row + begin);
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t pair = tile * kLanes;
      const ChannelScales<kEncoding> scales(k, pair);
      const std::byte* codes = k.codes;
      for (int64_t i = begin; i < end; ++i, codes += k.row_bytes) {
        _mm512_storeu_si512(x.At(tile, i), RoundedByHardware(scales.Load(codes, pair)).raw);
      }
    }
    begin = end;
  }
  // A copy, which the stores cannot change.
  const StoredRows v = rows.v;
  for (int64_t i = 0; i < kRows; ++i) {
    const std::byte* codes = v.codes + (row + i) * v.row_bytes;
    uint32_t* out = x.At(tiles, i);
    for (int64_t tile = 0; tile < tiles; ++tile, out += x.At(1, 0) - x.At(0, 0)) {
      const int64_t pair = tile * kLanes;
      if constexpr (kEncoding == KvEncoding::kBF16) {
        _mm512_storeu_si512(out, LoadBf16Words(codes, pair).raw);
      } else {
        _mm512_storeu_si512(out, RoundedByHardware(ScaledValues<kEncoding>(v, row + i, pair)).raw);
      }
    }
  }
}

// Stored rows come from main memory, a few from each of two sections at a time, which the processor's own
// prefetching does not follow: while a block's products are computed, the codes of one further on are
// fetched.
template <int kRows>
class RowFetcher {
 public:
  /// All is fetched after `steps` steps.
  RowFetcher(const StoredRows& k, const StoredRows& v, int64_t row, int64_t steps)
      : k_(k.codes + (row + kBlocksAhead * kRows) * k.row_bytes),
        v_(v.codes + (row + kBlocksAhead * kRows) * v.row_bytes),
        bytes_(kRows * k.row_bytes),
        step_(RoundUp((bytes_ + steps - 1) / steps, kLine)) {}
  HWY_INLINE void Step() {
    for (const int64_t end = std::min(next_ + step_, bytes_); next_ < end; next_ += kLine) {
      hwy::Prefetch(k_ + next_);
      hwy::Prefetch(v_ + next_);
    }
  }

 private:
  static constexpr int64_t kBlocksAhead = 2, kLine = 64;

  const std::byte *k_, *v_;
  const int64_t bytes_, step_;
  int64_t next_ = 0;
};

// Sums of as many ranks as a vector holds.
struct SixteenRanks {
  using Sums = __m512;
  static HWY_INLINE Sums Zero() { return _mm512_setzero_ps(); }
  static HWY_INLINE __m512bh Load(const uint32_t* down) { return (__m512bh)_mm512_loadu_si512(down); }
  static HWY_INLINE Sums Add(Sums sum, uint32_t pair, __m512bh w) {
    return _mm512_dpbf16_ps(sum, Broadcast(pair), w);
  }
  static HWY_INLINE void Store(Sums a, Sums b, uint32_t* inner) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(inner), (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(a, b)));
  }
};
struct EightRanks {
  using Sums = __m256;
  static HWY_INLINE Sums Zero() { return _mm256_setzero_ps(); }
  static HWY_INLINE __m256bh Load(const uint32_t* down) {
    return (__m256bh)_mm256_loadu_si256(reinterpret_cast<const __m256i*>(down));
  }
  static HWY_INLINE Sums Add(Sums sum, uint32_t pair, __m256bh w) {
    return _mm256_dpbf16_ps(sum, (__m256bh)_mm256_set1_epi32(static_cast<int>(pair)), w);
  }
  static HWY_INLINE void Store(Sums a, Sums b, uint32_t* inner) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(inner), (__m128i)_mm256_cvtneps_pbh(_mm256_add_ps(a, b)));
  }
};

// inner = x down, for the ranks of a vector from `rank` on. fetcher: null where all has been fetched
template <class Ranks, int kRows>
HWY_INLINE void ProjectOnto(const CorrectionWeights& weights, int64_t rank, ChannelTiles<kRows> x,
                            RowFetcher<kRows>* fetcher, RankTiles<kRows> inner) {
  // Two sums per row, or the products would wait for each other.
  constexpr int64_t kUnroll = 2;
  typename Ranks::Sums sums[kUnroll][kRows];
  for (int i = 0; i < kRows; ++i) sums[0][i] = sums[1][i] = Ranks::Zero();
  const uint32_t* down = weights.down_pairs + rank;
  for (int64_t tile = 0; tile < weights.channels / kChannels; ++tile) {
    if (fetcher != nullptr) fetcher->Step();
    const uint32_t* values = x.At(tile, 0);
    for (int64_t c = 0; c < kLanes; c += kUnroll, values += kUnroll) {
      for (int64_t u = 0; u < kUnroll; ++u, down += weights.rank) {
        const auto w = Ranks::Load(down);
        for (int i = 0; i < kRows; ++i) sums[u][i] = Ranks::Add(sums[u][i], values[i * kLanes + u], w);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) Ranks::Store(sums[0][i], sums[1][i], inner.At(rank / kLanes, i));
}

template <int kRows>
HWY_INLINE void ProjectRows(const CorrectionWeights& weights, RowFetcher<kRows> fetcher,
                            ChannelTiles<kRows> x, RankTiles<kRows> inner) {
  for (int64_t rank = 0; rank < weights.map_rank; rank += kLanes) {
    RowFetcher<kRows>* fetches = rank == 0 ? &fetcher : nullptr;
    if (weights.map_rank - rank > kLanes / 2) {
      ProjectOnto<SixteenRanks, kRows>(weights, rank, x, fetches, inner);
    } else {
      ProjectOnto<EightRanks, kRows>(weights, rank, x, fetches, inner);
    }
  }
}

// The channels of a tile of scale * x + offset + inner up, rounded. offsets: of each row
template <int kRows>
HWY_INLINE void ExpandTile(const CorrectionWeights& weights, const float* const* offsets,
                           ChannelTiles<kRows> x, RankTiles<kRows> inner, int64_t tile, uint16_t* out,
                           int64_t out_stride) {
  const int64_t stride = weights.row_stride, channel = tile * kChannels;
  __m512 low[kRows], high[kRows];
  const auto start = [&](int64_t c, __m256i of_row, const float* offset) KVBLEND_BF16_ATTR {
    const __m512 value = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(of_row), 16));
    return _mm512_fmadd_ps(_mm512_loadu_ps(weights.scale + c), value, _mm512_loadu_ps(offset + c));
  };
  for (int i = 0; i < kRows; ++i) {
    const auto* of_row = reinterpret_cast<const __m256i*>(x.At(tile, i));
    low[i] = start(channel, _mm256_loadu_si256(of_row), offsets[i]);
    high[i] = start(channel + kLanes, _mm256_loadu_si256(of_row + 1), offsets[i]);
  }
  const uint32_t* up = weights.up_pairs + channel;
  for (int64_t j = 0; j < weights.map_rank; j += kLanes) {
    const uint32_t* values = inner.At(j / kLanes, 0);
    const int64_t words = std::min(kLanes, weights.map_rank - j) / 2;
    for (int64_t word = 0; word < words; ++word, ++values, up += stride) {
      const auto up_low = (__m512bh)_mm512_loadu_si512(up),
                 up_high = (__m512bh)_mm512_loadu_si512(up + kLanes);
      for (int i = 0; i < kRows; ++i) {
        const __m512bh value = Broadcast(values[i * (kLanes / 2)]);
        low[i] = _mm512_dpbf16_ps(low[i], value, up_low);
        high[i] = _mm512_dpbf16_ps(high[i], value, up_high);
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    _mm512_storeu_si512(out + i * out_stride, (__m512i)_mm512_cvtne2ps_pbh(high[i], low[i]));
  }
}

// Where corrected rows go.
struct CorrectedRows {
  uint16_t *k, *v;  // [rows, cols]
  int64_t cols;
};

template <KvEncoding kEncoding, int kRows>
void CorrectBlock(const CorrectionWeights& weights, const ChunkRows& rows, int64_t row, uint32_t* scratch,
                  const CorrectedRows& out) {
  const ChannelTiles<kRows> x{scratch};
  const RankTiles<kRows> inner{scratch + kRows * weights.channels / 2};
  const int64_t tiles = out.cols / kChannels;
  DecodeRows<kEncoding, kRows>(rows, row, out.cols, x);
  ProjectRows<kRows>(weights, {rows.k, rows.v, row, 2 * tiles}, x, inner);
  const float* offsets[kRows];
  for (int i = 0; i < kRows; ++i) offsets[i] = weights.offset_of(rows.first_token + row + i);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = row * out.cols + tile * kChannels;
    ExpandTile<kRows>(weights, offsets, x, inner, tile, out.k + first, out.cols);
    ExpandTile<kRows>(weights, offsets, x, inner, tiles + tile, out.v + first, out.cols);
  }
}

template <KvEncoding kEncoding>
void CorrectRowsOf(const CorrectionWeights& weights, const ChunkRows& rows, uint32_t* scratch,
                   const CorrectedRows& out) {
  int64_t row = 0;
  const auto correct = [&](auto block) KVBLEND_BF16_ATTR {
    for (; row + block() <= rows.k.rows; row += block()) {
      CorrectBlock<kEncoding, block()>(weights, rows, row, scratch, out);
    }
  };
  correct(std::integral_constant<int, kCorrectionBlock>());
  correct(std::integral_constant<int, 3>());
  correct(std::integral_constant<int, 1>());
}

void CorrectStoredRowsImpl(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                           const StoredRows& v, int64_t cols, uint32_t* scratch, uint16_t* k_out,
                           uint16_t* v_out) {
  const ChunkRows rows{k, v, first_token};
  const CorrectedRows out{k_out, v_out, cols};
  switch (k.encoding) {
    case KvEncoding::kInt8:
      return CorrectRowsOf<KvEncoding::kInt8>(weights, rows, scratch, out);
    case KvEncoding::kInt4:
      return CorrectRowsOf<KvEncoding::kInt4>(weights, rows, scratch, out);
    case KvEncoding::kFp8:
      return CorrectRowsOf<KvEncoding::kFp8>(weights, rows, scratch, out);
    default:
      return CorrectRowsOf<KvEncoding::kBF16>(weights, rows, scratch, out);
  }
}

#else

void CorrectStoredRowsImpl(const CorrectionWeights&, int64_t, const StoredRows&, const StoredRows&, int64_t,
                           uint32_t*, uint16_t*, uint16_t*) {}

#endif  // KVBLEND_BF16_WORDS

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(CorrectStoredRowsImpl);

void CorrectStoredRowsBf16(const CorrectionWeights& weights, int64_t first_token, const StoredRows& k,
                           const StoredRows& v, int64_t cols, uint32_t* scratch, uint16_t* k_out,
                           uint16_t* v_out) {
  HWY_DYNAMIC_DISPATCH(CorrectStoredRowsImpl)(weights, first_token, k, v, cols, scratch, k_out, v_out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
