// Stored KV straight into bf16 pages: decoded, rotated and rounded in registers.
//
// Elements 2i and 2i + 1 of a row are handled as one 32-bit lane each of two vectors, "even" and "odd".
// Stored pairs come apart with a mask and a shift, pairs of bf16 fill one lane again, and the interleaved
// rotation needs no shuffle.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd_load_kv.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/cpu/simd_fp8-inl.h"
// clang-format on
#include <array>

#include "hwy/cache_control.h"
#include "kernels/cpu/simd.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// 16 pairs are 32 channels, a group of V, so no vector has two scales.
using PairF32 = hn::CappedTag<float, 16>;
using PairU32 = hn::RebindToUnsigned<PairF32>;
using PairI32 = hn::RebindToSigned<PairF32>;
using Words = hn::Vec<PairU32>;

struct Pairs {
  hn::Vec<PairF32> even, odd;
};

HWY_INLINE Pairs FromBf16(Words words) {
  const PairF32 d;
  return {hn::BitCast(d, hn::ShiftLeft<16>(words)),
          hn::BitCast(d, hn::And(words, hn::Set(PairU32(), 0xFFFF0000u)))};
}

HWY_INLINE Words LoadBf16Words(const void* data, size_t pair) {
  return hn::LoadU(PairU32(), static_cast<const uint32_t*>(data) + pair);
}

HWY_INLINE Pairs FromCodes(Words even, Words odd) {
  const PairF32 d;
  return {hn::ConvertTo(d, hn::BitCast(PairI32(), even)), hn::ConvertTo(d, hn::BitCast(PairI32(), odd))};
}

// Pairs `pair`.. of a row, before scales are applied.
template <KvEncoding kEncoding>
HWY_INLINE Pairs LoadPairs(const std::byte* row, size_t pair) {
  const PairU32 d32;
  if constexpr (kEncoding == KvEncoding::kInt8) {
    const hn::Rebind<uint16_t, PairF32> d16;
    const auto codes = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + pair));
    return FromCodes(hn::And(codes, hn::Set(d32, 0xFFu)), hn::ShiftRight<8>(codes));
  } else if constexpr (kEncoding == KvEncoding::kInt4) {
    const hn::Rebind<uint8_t, PairF32> d8;
    const auto codes = hn::PromoteTo(d32, hn::LoadU(d8, reinterpret_cast<const uint8_t*>(row) + pair));
    return FromCodes(hn::And(codes, hn::Set(d32, 15u)), hn::ShiftRight<4>(codes));
  } else if constexpr (kEncoding == KvEncoding::kFp8) {
#if KVBLEND_BF16_WORDS
    const auto* codes = reinterpret_cast<const __m256i*>(row + 2 * pair);
    return FromBf16(Words{E4M3ToBf16(_mm256_loadu_si256(codes))});
#else
    const PairF32 d;
    const hn::Rebind<uint16_t, PairF32> d16;
    const auto codes = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(row) + pair));
    return {E4M3ToF32(d, codes), E4M3ToF32(d, hn::ShiftRight<8>(codes))};
#endif
  } else {
    return FromBf16(LoadBf16Words(row, pair));
  }
}

HWY_INLINE Pairs Scaled(const Pairs& codes, const Pairs& steps, const Pairs& offsets) {
  return {hn::MulAdd(steps.even, codes.even, offsets.even), hn::MulAdd(steps.odd, codes.odd, offsets.odd)};
}

// Pages outgrow the caches, and every line is written whole: past the caches, it need not be read before.
HWY_INLINE void StoreWords(Words words, uint16_t* row, size_t pair) {
  hn::Stream(words, PairU32(), reinterpret_cast<uint32_t*>(row) + pair);
}

struct SoftwareRounding {
  static HWY_INLINE void Store(const Pairs& pairs, uint16_t* row, size_t pair) {
    const PairF32 d;
    const auto even = hn::ShiftRight<16>(RoundToBF16(d, pairs.even));
    const auto odd = hn::And(RoundToBF16(d, pairs.odd), hn::Set(PairU32(), 0xFFFF0000u));
    StoreWords(hn::Or(even, odd), row, pair);
  }
};

#if KVBLEND_BF16_WORDS
// Subnormals become zero.
struct HardwareRounding {
  static HWY_INLINE void Store(const Pairs& pairs, uint16_t* row, size_t pair) {
    // [even 0 .. 15, odd 0 .. 15] to pairs
    alignas(64) static constexpr auto kOrder = [] {
      std::array<uint16_t, 32> order{};
      for (uint16_t i = 0; i < 32; ++i) order[i] = i / 2 + i % 2 * 16;
      return order;
    }();
    const auto halves = (__m512i)_mm512_cvtne2ps_pbh(pairs.odd.raw, pairs.even.raw);
    StoreWords(Words{_mm512_permutexvar_epi16(_mm512_load_si512(kOrder.data()), halves)}, row, pair);
  }
};
#endif

HWY_INLINE Pairs Scaled(const Pairs& codes, const Pairs& steps) {
  return {hn::Mul(steps.even, codes.even), hn::Mul(steps.odd, codes.odd)};
}

// Steps and offsets of K's channels, kept over the rows of a group; nothing for bf16.
template <KvEncoding kEncoding>
struct ChannelScales {
  ChannelScales(const StoredRows& rows, size_t pair)
      : steps(FromBf16(LoadBf16Words(rows.steps, pair))),
        offsets(FromBf16(LoadBf16Words(rows.offsets, pair))) {}
  HWY_INLINE Pairs Load(const std::byte* row, size_t pair) const {
    return Scaled(LoadPairs<kEncoding>(row, pair), steps, offsets);
  }
  Pairs steps, offsets;
};
template <>
struct ChannelScales<KvEncoding::kFp8> {
  ChannelScales(const StoredRows& rows, size_t pair) : steps(FromBf16(LoadBf16Words(rows.steps, pair))) {}
  HWY_INLINE Pairs Load(const std::byte* row, size_t pair) const {
    return Scaled(LoadPairs<KvEncoding::kFp8>(row, pair), steps);
  }
  Pairs steps;
};
template <>
struct ChannelScales<KvEncoding::kBF16> {
  ChannelScales(const StoredRows&, size_t) {}
  HWY_INLINE Pairs Load(const std::byte* row, size_t pair) const {
    return LoadPairs<KvEncoding::kBF16>(row, pair);
  }
};

// Keys are read in strips of a vector's width and both sections in turns, which the processor's own
// prefetching does not follow: each step fetches as much of the section's next rows as it reads of these.
template <KvEncoding kEncoding>
class Fetcher {
 public:
  explicit Fetcher(const StoredRows& rows) : next_(rows.codes + rows.rows * rows.row_bytes) {}
  HWY_INLINE void Step(size_t vectors) {
    hwy::Prefetch(next_);
    next_ += vectors * hn::Lanes(PairF32()) * kPairBytes;
  }

 private:
  static constexpr size_t kPairBytes = kEncoding == KvEncoding::kBF16   ? 4
                                       : kEncoding == KvEncoding::kInt4 ? 1
                                                                        : 2;
  const std::byte* next_;
};

template <KvEncoding kEncoding, class Rounding>
void LoadKeysInterleaved(const StoredRows& rows, const float* const* cos, const PageRows& out) {
  const PairF32 d;
  const size_t head_pairs = out.head_dim / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    uint16_t* const pages = out.pages + head * out.head_stride;
    for (size_t i = 0; i < head_pairs; i += hn::Lanes(d)) {
      const size_t pair = head * head_pairs + i;
      const ChannelScales<kEncoding> scales(rows, pair);
      for (int64_t r = 0; r < rows.rows; ++r) {
        fetcher.Step(1);
        const Pairs x = scales.Load(rows.codes + r * rows.row_bytes, pair);
        const auto c = hn::LoadU(d, cos[r] + i), s = hn::LoadU(d, cos[r] + head_pairs + i);
        Rounding::Store(
            {hn::NegMulAdd(x.odd, s, hn::Mul(x.even, c)), hn::MulAdd(x.even, s, hn::Mul(x.odd, c))},
            pages + out.slots[r], i);
      }
    }
  }
}

HWY_INLINE Pairs LoadF32Pairs(const float* data) {
  Pairs pairs;
  hn::LoadInterleaved2(PairF32(), data, pairs.even, pairs.odd);
  return pairs;
}

template <KvEncoding kEncoding, class Rounding>
void LoadKeysSplitHalf(const StoredRows& rows, const float* const* cos, const PageRows& out) {
  const PairF32 d;
  const size_t half = out.head_dim / 2, half_pairs = half / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    uint16_t* const pages = out.pages + head * out.head_stride;
    for (size_t i = 0; i < half_pairs; i += hn::Lanes(d)) {
      const size_t pair = 2 * head * half_pairs + i;
      const ChannelScales<kEncoding> a_scales(rows, pair), b_scales(rows, pair + half_pairs);
      for (int64_t r = 0; r < rows.rows; ++r) {
        fetcher.Step(2);
        const std::byte* row = rows.codes + r * rows.row_bytes;
        const Pairs a = a_scales.Load(row, pair), b = b_scales.Load(row, pair + half_pairs);
        const Pairs c = LoadF32Pairs(cos[r] + 2 * i), s = LoadF32Pairs(cos[r] + half + 2 * i);
        uint16_t* const target = pages + out.slots[r];
        Rounding::Store({hn::NegMulAdd(b.even, s.even, hn::Mul(a.even, c.even)),
                         hn::NegMulAdd(b.odd, s.odd, hn::Mul(a.odd, c.odd))},
                        target, i);
        Rounding::Store({hn::MulAdd(a.even, s.even, hn::Mul(b.even, c.even)),
                         hn::MulAdd(a.odd, s.odd, hn::Mul(b.odd, c.odd))},
                        target, half_pairs + i);
      }
    }
  }
}

template <KvEncoding kEncoding, class Rounding>
void LoadValuesFrom(const StoredRows& rows, const PageRows& out) {
  const PairF32 d;
  const size_t head_pairs = out.head_dim / 2;
  constexpr size_t kGroupPairs = kKvGroup / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const std::byte* row = rows.codes + r * rows.row_bytes;
    size_t pair = 0;
    for (int64_t head = 0; head < out.num_heads; ++head) {
      uint16_t* const target = out.pages + head * out.head_stride + out.slots[r];
      for (size_t i = 0; i < head_pairs; i += hn::Lanes(d), pair += hn::Lanes(d)) {
        fetcher.Step(1);
        if constexpr (kEncoding == KvEncoding::kBF16) {
          StoreWords(LoadBf16Words(row, pair), target, i);
        } else {
          const int64_t group = r * rows.scale_cols + pair / kGroupPairs;
          const auto step = hn::Set(d, Bf16ToF32(rows.steps[group]));
          const Pairs codes = LoadPairs<kEncoding>(row, pair);
          if constexpr (HasOffsets(kEncoding)) {
            const auto offset = hn::Set(d, Bf16ToF32(rows.offsets[group]));
            Rounding::Store(Scaled(codes, {step, step}, {offset, offset}), target, i);
          } else {
            Rounding::Store(Scaled(codes, {step, step}), target, i);
          }
        }
      }
    }
  }
}

template <KvEncoding kEncoding, class Rounding>
void LoadRowsFrom(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out) {
  if (cos == nullptr) return LoadValuesFrom<kEncoding, Rounding>(rows, out);
  if (layout == RopeLayout::kSplitHalf) return LoadKeysSplitHalf<kEncoding, Rounding>(rows, cos, out);
  LoadKeysInterleaved<kEncoding, Rounding>(rows, cos, out);
}

template <class Rounding>
void LoadRowsWith(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out) {
  switch (rows.encoding) {
    case KvEncoding::kInt8:
      return LoadRowsFrom<KvEncoding::kInt8, Rounding>(rows, layout, cos, out);
    case KvEncoding::kInt4:
      return LoadRowsFrom<KvEncoding::kInt4, Rounding>(rows, layout, cos, out);
    case KvEncoding::kFp8:
      return LoadRowsFrom<KvEncoding::kFp8, Rounding>(rows, layout, cos, out);
    default:
      return LoadRowsFrom<KvEncoding::kBF16, Rounding>(rows, layout, cos, out);
  }
}

void LoadRowsImpl(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageRows& out) {
#if KVBLEND_BF16_WORDS
  if (HasBf16()) return LoadRowsWith<HardwareRounding>(rows, layout, cos, out);
#endif
  LoadRowsWith<SoftwareRounding>(rows, layout, cos, out);
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
