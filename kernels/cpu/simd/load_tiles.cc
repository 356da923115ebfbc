// Stored KV straight into pages of layout kTiles: decoded, corrected, rotated, rounded and brought into their
// order in registers. Only processors with AVX512-BF16 have such pages.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/load_tiles.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/stored_rows-inl.h"
// clang-format on
#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd/simd.h"
#include "kernels/tensor.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

#if KVBLEND_BF16_WORDS

// Some words, pairs of channels, of up to kTileColumns keys.
struct KeyWords {
  alignas(64) uint32_t of_key[kTileColumns][kTileColumns] = {};

  HWY_INLINE void Set(int64_t key, Words words) { _mm512_store_si512(of_key[key], words.raw); }

  // Writes word s of keys [first, first + count) to tile + s * kPageTile + first ..
  HWY_INLINE void Store(uint32_t* tile, int64_t first, int64_t count) const {
    __m512i t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
      const __m512i even = _mm512_load_si512(of_key[i]), odd = _mm512_load_si512(of_key[i + 1]);
      t[i] = _mm512_unpacklo_epi32(even, odd);
      t[i + 1] = _mm512_unpackhi_epi32(even, odd);
    }
    // 128 bits l of u[4 i + c]: word 4 l + c of keys 4 i .. 4 i + 3.
    for (int i = 0; i < 16; i += 4) {
      u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
      u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
      u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
      u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    const auto mask = static_cast<__mmask16>(((1u << count) - 1) << first);
    const auto store = [&](int word, __m512i keys) KVBLEND_BF16_ATTR {
      // Whole lines go past the caches, as in load_kv.cc.
      if (count == kTileColumns) {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(tile + word * kPageTile), keys);
      } else {
        _mm512_mask_storeu_epi32(tile + word * kPageTile, mask, keys);
      }
    };
    for (int c = 0; c < 4; ++c) {
      const __m512i a = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88),
                    b = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xDD),
                    d = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88),
                    e = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xDD);
      store(c, _mm512_shuffle_i32x4(a, d, 0x88));
      store(4 + c, _mm512_shuffle_i32x4(b, e, 0x88));
      store(8 + c, _mm512_shuffle_i32x4(a, d, 0xDD));
      store(12 + c, _mm512_shuffle_i32x4(b, e, 0xDD));
    }
  }
};

template <KvEncoding kEncoding, class Correction>
void LoadKeysInterleaved(absl::Span<const StoredRows> parts, const float* const* cos, const TileKeys& out) {
  const int64_t head_pairs = out.head_dim / 2;
  Fetcher<kEncoding> fetcher(parts.back());
  KeyWords words;
  for (int64_t head = 0; head < out.num_heads; ++head) {
    for (int64_t i = 0; i < head_pairs; i += kTileColumns) {
      const int64_t pair = head * head_pairs + i;
      int64_t key = 0;
      for (const StoredRows& rows : parts) {
        const KeyChannels<kEncoding, Correction> channels(rows, pair);
        for (int64_t r = 0; r < rows.rows; ++r, ++key) {
          fetcher.Step(1);
          const Pairs x = channels.Load(rows.codes + r * rows.row_bytes, pair);
          words.Set(out.first + key,
                    RoundedByHardware(RotatedPairs(x, cos[key] + i, cos[key] + head_pairs + i)));
        }
      }
      words.Store(out.column + head * out.head_stride + i * kPageTile, out.first, key);
    }
  }
}

template <KvEncoding kEncoding, class Correction>
void LoadKeysSplitHalf(absl::Span<const StoredRows> parts, const float* const* cos, const TileKeys& out) {
  const int64_t half = out.head_dim / 2, half_pairs = half / 2;
  Fetcher<kEncoding> fetcher(parts.back());
  KeyWords low, high;
  for (int64_t head = 0; head < out.num_heads; ++head) {
    for (int64_t i = 0; i < half_pairs; i += kTileColumns) {
      const int64_t pair = 2 * head * half_pairs + i;
      int64_t key = 0;
      for (const StoredRows& rows : parts) {
        const KeyChannels<kEncoding, Correction> a_channels(rows, pair), b_channels(rows, pair + half_pairs);
        for (int64_t r = 0; r < rows.rows; ++r, ++key) {
          fetcher.Step(2);
          const std::byte* row = rows.codes + r * rows.row_bytes;
          const Halves x = RotatedHalves(a_channels.Load(row, pair), b_channels.Load(row, pair + half_pairs),
                                         cos[key] + 2 * i, cos[key] + half + 2 * i);
          low.Set(out.first + key, RoundedByHardware(x.low));
          high.Set(out.first + key, RoundedByHardware(x.high));
        }
      }
      uint32_t* tile = out.column + head * out.head_stride + i * kPageTile;
      low.Store(tile, out.first, key);
      high.Store(tile + half_pairs * kPageTile, out.first, key);
    }
  }
}

// Words of row r of V from pair `pair` on, as LoadValuesFrom wants them.
template <KvEncoding kEncoding, bool kCorrected>
class ValueWords {
 public:
  HWY_INLINE ValueWords(const StoredRows& rows, int64_t r)
      : codes_(rows.codes + r * rows.row_bytes), row_(rows, r) {}
  HWY_INLINE __m512i Load(int64_t pair) const {
    if constexpr (kEncoding == KvEncoding::kBF16 && !kCorrected) {
      return LoadBf16Words(codes_, pair).raw;
    } else {
      return RoundedByHardware(row_.Load(pair)).raw;
    }
  }

 private:
  const std::byte* const codes_;
  const ValueRow<kEncoding, kCorrected> row_;
};

// The order that makes two vectors of 32 channels, one per token, both tokens' words of channels kFirst ..
// kFirst + 15; or one token's vector its halves of these.
template <int kFirst>
HWY_INLINE __m512i ChannelsOfTokens() {
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 32> order{};
    for (uint16_t i = 0; i < 32; ++i) order[i] = kFirst + i / 2 + i % 2 * 32;
    return order;
  }();
  return _mm512_load_si512(kOrder.data());
}

// Tokens r and r + 1, into the words of their pair.
template <KvEncoding kEncoding, bool kCorrected>
void LoadPair(const StoredRows& rows, int64_t r, const TileValues& out, uint32_t* pair_words,
              Fetcher<kEncoding>& fetcher) {
  const int64_t head_pairs = out.head_dim / 2;
  const ValueWords<kEncoding, kCorrected> first_row(rows, r), second_row(rows, r + 1);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    for (int64_t i = 0; i < head_pairs; i += kTileColumns) {
      fetcher.Step(2);
      const int64_t pair = head * head_pairs + i;
      const __m512i first = first_row.Load(pair), second = second_row.Load(pair);
      auto* target = reinterpret_cast<__m512i*>(pair_words + head * out.head_stride + 2 * i);
      _mm512_stream_si512(target, _mm512_permutex2var_epi16(first, ChannelsOfTokens<0>(), second));
      _mm512_stream_si512(target + 1, _mm512_permutex2var_epi16(first, ChannelsOfTokens<16>(), second));
    }
  }
}

// Token r alone, as the first or second of its pair. The other half may be written by another thread.
template <KvEncoding kEncoding, bool kCorrected>
void LoadHalf(const StoredRows& rows, int64_t r, bool second, const TileValues& out, uint32_t* pair_words) {
  const int64_t head_pairs = out.head_dim / 2;
  const ValueWords<kEncoding, kCorrected> row(rows, r);
  const auto mask = static_cast<__mmask32>(second ? 0xAAAAAAAAu : 0x55555555u);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    for (int64_t i = 0; i < head_pairs; i += kTileColumns) {
      const __m512i words = row.Load(head * head_pairs + i);
      uint32_t* target = pair_words + head * out.head_stride + 2 * i;
      _mm512_mask_storeu_epi16(target, mask, _mm512_permutex2var_epi16(words, ChannelsOfTokens<0>(), words));
      _mm512_mask_storeu_epi16(target + kTileColumns, mask,
                               _mm512_permutex2var_epi16(words, ChannelsOfTokens<16>(), words));
    }
  }
}

template <KvEncoding kEncoding, bool kCorrected>
void LoadValuesFrom(const StoredRows& rows, const TileValues& out) {
  Fetcher<kEncoding> fetcher(rows);
  uint32_t* pair = out.pair;
  int64_t r = 0;
  if (out.odd) {
    LoadHalf<kEncoding, kCorrected>(rows, r++, /*second=*/true, out, pair);
    pair += out.head_dim;
  }
  for (; r + 2 <= rows.rows; r += 2, pair += out.head_dim)
    LoadPair<kEncoding, kCorrected>(rows, r, out, pair, fetcher);
  if (r < rows.rows) LoadHalf<kEncoding, kCorrected>(rows, r, /*second=*/false, out, pair);
}

void LoadKeyTileImpl(absl::Span<const StoredRows> parts, RopeLayout layout, const float* const* cos,
                     const TileKeys& out) {
  ForKindOf<HardwareRounding>(parts[0], [&](auto encoding, auto correction) KVBLEND_BF16_ATTR {
    using Correction = typename decltype(correction)::type;
    if (layout == RopeLayout::kSplitHalf) {
      LoadKeysSplitHalf<encoding(), Correction>(parts, cos, out);
    } else {
      LoadKeysInterleaved<encoding(), Correction>(parts, cos, out);
    }
  });
}

void LoadValuePairsImpl(const StoredRows& rows, const TileValues& out) {
  ForKindOf<HardwareRounding>(rows, [&](auto encoding, auto correction) KVBLEND_BF16_ATTR {
    LoadValuesFrom<encoding(), !std::is_void_v<typename decltype(correction)::type>>(rows, out);
  });
}

#else

void LoadKeyTileImpl(absl::Span<const StoredRows>, RopeLayout, const float* const*, const TileKeys&) {}
void LoadValuePairsImpl(const StoredRows&, const TileValues&) {}

#endif  // KVBLEND_BF16_WORDS

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(LoadKeyTileImpl);
HWY_EXPORT(LoadValuePairsImpl);

void LoadKeyTile(absl::Span<const StoredRows> parts, RopeLayout layout, const float* const* cos,
                 const TileKeys& out) {
  HWY_DYNAMIC_DISPATCH(LoadKeyTileImpl)(parts, layout, cos, out);
}
void LoadValuePairs(const StoredRows& rows, const TileValues& out) {
  HWY_DYNAMIC_DISPATCH(LoadValuePairsImpl)(rows, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
