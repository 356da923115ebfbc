// Stored KV straight into bf16 pages of layout kRows: decoded, corrected, rotated and rounded in registers.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/load_kv.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/stored_rows-inl.h"
// clang-format on
#include <type_traits>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd/simd.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// Pages outgrow the caches and lines are written whole: stores past the caches need not read them first.
HWY_INLINE void StoreWords(Words words, uint16_t* row, size_t pair) {
  hn::Stream(words, PairU32(), reinterpret_cast<uint32_t*>(row) + pair);
}

struct BySoftware : SoftwareRounding {
  static HWY_INLINE void Store(const Pairs& pairs, uint16_t* row, size_t pair) {
    const PairF32 d;
    const auto even = hn::ShiftRight<16>(RoundToBF16(d, pairs.even));
    const auto odd = hn::And(RoundToBF16(d, pairs.odd), hn::Set(PairU32(), 0xFFFF0000u));
    StoreWords(hn::Or(even, odd), row, pair);
  }
};

#if KVBLEND_BF16_WORDS
struct ByHardware : HardwareRounding {
  static HWY_INLINE void Store(const Pairs& pairs, uint16_t* row, size_t pair) {
    StoreWords(RoundedByHardware(pairs), row, pair);
  }
};
#endif

// Correction: how corrected values are rounded before they are rotated; void: nothing is corrected.
template <KvEncoding kEncoding, class Correction, class Rounding>
void LoadKeysInterleaved(const StoredRows& rows, const float* const* cos, const PageRows& out) {
  const PairF32 d;
  const size_t head_pairs = out.head_dim / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    uint16_t* const pages = out.pages + head * out.head_stride;
    for (size_t i = 0; i < head_pairs; i += hn::Lanes(d)) {
      const size_t pair = head * head_pairs + i;
      const KeyChannels<kEncoding, Correction> channels(rows, pair);
      for (int64_t r = 0; r < rows.rows; ++r) {
        fetcher.Step(1);
        const Pairs x = channels.Load(rows.codes + r * rows.row_bytes, pair);
        Rounding::Store(RotatedPairs(x, cos[r] + i, cos[r] + head_pairs + i), pages + out.slots[r], i);
      }
    }
  }
}

template <KvEncoding kEncoding, class Correction, class Rounding>
void LoadKeysSplitHalf(const StoredRows& rows, const float* const* cos, const PageRows& out) {
  const PairF32 d;
  const size_t half = out.head_dim / 2, half_pairs = half / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    uint16_t* const pages = out.pages + head * out.head_stride;
    for (size_t i = 0; i < half_pairs; i += hn::Lanes(d)) {
      const size_t pair = 2 * head * half_pairs + i;
      const KeyChannels<kEncoding, Correction> a_channels(rows, pair), b_channels(rows, pair + half_pairs);
      for (int64_t r = 0; r < rows.rows; ++r) {
        fetcher.Step(2);
        const std::byte* row = rows.codes + r * rows.row_bytes;
        const Pairs a = a_channels.Load(row, pair), b = b_channels.Load(row, pair + half_pairs);
        const Halves x = RotatedHalves(a, b, cos[r] + 2 * i, cos[r] + half + 2 * i);
        uint16_t* const target = pages + out.slots[r];
        Rounding::Store(x.low, target, i);
        Rounding::Store(x.high, target, half_pairs + i);
      }
    }
  }
}

template <KvEncoding kEncoding, class Correction, class Rounding>
void LoadValuesFrom(const StoredRows& rows, const PageRows& out) {
  const PairF32 d;
  const size_t head_pairs = out.head_dim / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const ValueRow<kEncoding, !std::is_void_v<Correction>> row(rows, r);
    size_t pair = 0;
    for (int64_t head = 0; head < out.num_heads; ++head) {
      uint16_t* const target = out.pages + head * out.head_stride + out.slots[r];
      for (size_t i = 0; i < head_pairs; i += hn::Lanes(d), pair += hn::Lanes(d)) {
        fetcher.Step(1);
        if constexpr (kEncoding == KvEncoding::kBF16 && std::is_void_v<Correction>) {
          StoreWords(LoadBf16Words(rows.codes + r * rows.row_bytes, pair), target, i);
        } else {
          Rounding::Store(row.Load(pair), target, i);
        }
      }
    }
  }
}

template <class Rounding>
void LoadRowsWith(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out) {
  ForKindOf<Rounding>(rows, [&](auto encoding, auto correction) KVBLEND_BF16_ATTR {
    using Correction = typename decltype(correction)::type;
    if (cos == nullptr) return LoadValuesFrom<encoding(), Correction, Rounding>(rows, out);
    if (layout == RopeLayout::kSplitHalf) {
      return LoadKeysSplitHalf<encoding(), Correction, Rounding>(rows, cos, out);
    }
    LoadKeysInterleaved<encoding(), Correction, Rounding>(rows, cos, out);
  });
}

void LoadRowsImpl(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out) {
#if KVBLEND_BF16_WORDS
  if (HasBf16()) return LoadRowsWith<ByHardware>(rows, layout, cos, out);
#endif
  LoadRowsWith<BySoftware>(rows, layout, cos, out);
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(LoadRowsImpl);

void LoadKeys(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out) {
  HWY_DYNAMIC_DISPATCH(LoadRowsImpl)(rows, layout, cos, out);
}

void LoadValues(const StoredRows& rows, const PageRows& out) {
  HWY_DYNAMIC_DISPATCH(LoadRowsImpl)(rows, RopeLayout::kInterleaved, nullptr, out);
}

void FinishLoads() { hwy::FlushStream(); }

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
