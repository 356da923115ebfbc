// Rows of stored sections, decoded in registers; included once per instruction set, like simd-inl.h.
//
// Elements 2i and 2i + 1 of a row are handled as one 32-bit lane each of two vectors, "even" and "odd".
// Stored pairs come apart with a mask and a shift, pairs of bf16 fill one lane again, and the interleaved
// rotation needs no shuffle.
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/fp8-inl.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/kv_section.h"

// Per-target include guard.
#if defined(KVBLEND_KERNELS_CPU_SIMD_STORED_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVBLEND_KERNELS_CPU_SIMD_STORED_ROWS_INL_H_
#undef KVBLEND_KERNELS_CPU_SIMD_STORED_ROWS_INL_H_
#else
#define KVBLEND_KERNELS_CPU_SIMD_STORED_ROWS_INL_H_
#endif

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

// How corrected values are rounded to bf16 where they stay in registers.
struct SoftwareRounding {
  static HWY_INLINE Pairs Round(const Pairs& pairs) {
    const PairF32 d;
    const auto upper = hn::Set(PairU32(), 0xFFFF0000u);
    return {hn::BitCast(d, hn::And(RoundToBF16(d, pairs.even), upper)),
            hn::BitCast(d, hn::And(RoundToBF16(d, pairs.odd), upper))};
  }
};

// Channels `pair`.. of what is in order of pairs, as ScaleAndOffset has it.
HWY_INLINE Pairs LoadInPairOrder(const float* data, size_t pair) {
  constexpr size_t kPairs = ScaleAndOffset::kPairs;
  const float* even = data + pair / kPairs * (2 * kPairs) + pair % kPairs;
  return {hn::LoadU(PairF32(), even), hn::LoadU(PairF32(), even + kPairs)};
}

// Rows of K, decoded and, where Rounding is a type, corrected.
template <KvEncoding kEncoding, class Rounding>
struct KeyChannels : ChannelScales<kEncoding> {
  KeyChannels(const StoredRows& rows, size_t pair)
      : ChannelScales<kEncoding>(rows, pair),
        scale(LoadInPairOrder(rows.correction->scale, pair)),
        offset(LoadInPairOrder(rows.correction->offset_of(rows.first_token), pair)) {}
  HWY_INLINE Pairs Load(const std::byte* row, size_t pair) const {
    return Rounding::Round(Scaled(ChannelScales<kEncoding>::Load(row, pair), scale, offset));
  }
  Pairs scale, offset;
};
template <KvEncoding kEncoding>
struct KeyChannels<kEncoding, void> : ChannelScales<kEncoding> {
  using ChannelScales<kEncoding>::ChannelScales;
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

HWY_INLINE Pairs LoadF32Pairs(const float* data) {
  Pairs pairs;
  hn::LoadInterleaved2(PairF32(), data, pairs.even, pairs.odd);
  return pairs;
}

HWY_INLINE hn::Vec<PairF32> BroadcastBf16(uint16_t value) {
#if KVBLEND_BF16_WORDS  // without a detour over the processor's other registers
  const __m512i values = _mm512_set1_epi16(static_cast<int16_t>(value));
  return hn::BitCast(PairF32(), hn::ShiftLeft<16>(Words{values}));
#else
  return hn::Set(PairF32(), Bf16ToF32(value));
#endif
}

// Pairs `pair`.. of row r of a section of V, scaled. Not of bf16.
template <KvEncoding kEncoding>
HWY_INLINE Pairs ScaledValues(const StoredRows& rows, int64_t r, size_t pair) {
  const int64_t group = r * rows.scale_cols + static_cast<int64_t>(pair / (kKvGroup / 2));
  const auto step = BroadcastBf16(rows.steps[group]);
  const Pairs codes = LoadPairs<kEncoding>(rows.codes + r * rows.row_bytes, pair);
  if constexpr (HasOffsets(kEncoding)) {
    const auto offset = BroadcastBf16(rows.offsets[group]);
    return Scaled(codes, {step, step}, {offset, offset});
  } else {
    return Scaled(codes, {step, step});
  }
}

// A row of V, decoded and, where kCorrected, corrected; not rounded.
template <KvEncoding kEncoding, bool kCorrected>
class ValueRow {
 public:
  HWY_INLINE ValueRow(const StoredRows& rows, int64_t r) : rows_(rows), r_(r) {
    if constexpr (kCorrected) offset_ = rows.correction->offset_of(rows.first_token + r);
  }
  HWY_INLINE Pairs Load(size_t pair) const {
    if constexpr (kCorrected) {
      return Scaled(Decoded(pair), LoadInPairOrder(rows_.correction->scale, pair),
                    LoadInPairOrder(offset_, pair));
    } else {
      return Decoded(pair);
    }
  }

 private:
  HWY_INLINE Pairs Decoded(size_t pair) const {
    if constexpr (kEncoding == KvEncoding::kBF16) {
      return LoadPairs<kEncoding>(rows_.codes + r_ * rows_.row_bytes, pair);
    } else {
      return ScaledValues<kEncoding>(rows_, r_, pair);
    }
  }

  const StoredRows& rows_;
  const int64_t r_;
  const float* offset_ = nullptr;
};

// Pairs (x[2i], x[2i + 1]), rotated by RoPE.
HWY_INLINE Pairs RotatedPairs(const Pairs& x, const float* cos, const float* sin) {
  const PairF32 d;
  const auto c = hn::LoadU(d, cos), s = hn::LoadU(d, sin);
  return {hn::NegMulAdd(x.odd, s, hn::Mul(x.even, c)), hn::MulAdd(x.even, s, hn::Mul(x.odd, c))};
}

// The same for pairs from the two halves of a head, (x[i], x[i + head_dim / 2]).
struct Halves {
  Pairs low, high;
};
HWY_INLINE Halves RotatedHalves(const Pairs& a, const Pairs& b, const float* cos, const float* sin) {
  const Pairs c = LoadF32Pairs(cos), s = LoadF32Pairs(sin);
  return {
      {hn::NegMulAdd(b.even, s.even, hn::Mul(a.even, c.even)),
       hn::NegMulAdd(b.odd, s.odd, hn::Mul(a.odd, c.odd))},
      {hn::MulAdd(a.even, s.even, hn::Mul(b.even, c.even)), hn::MulAdd(a.odd, s.odd, hn::Mul(b.odd, c.odd))}};
}

#if KVBLEND_BF16_WORDS
// Words of pairs, rounded. Subnormals become zero.
HWY_INLINE Words RoundedByHardware(const Pairs& pairs) {
  // [even 0 .. 15, odd 0 .. 15] to pairs
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 32> order{};
    for (uint16_t i = 0; i < 32; ++i) order[i] = i / 2 + i % 2 * 16;
    return order;
  }();
  const auto halves = (__m512i)_mm512_cvtne2ps_pbh(pairs.odd.raw, pairs.even.raw);
  return Words{_mm512_permutexvar_epi16(_mm512_load_si512(kOrder.data()), halves)};
}

struct HardwareRounding {
  static HWY_INLINE Pairs Round(const Pairs& pairs) { return FromBf16(RoundedByHardware(pairs)); }
};
#endif

// Calls body(encoding, correction) with the encoding as a constant, and std::type_identity<Rounding> where
// rows are corrected, else that of void.
template <class Rounding, class Body>
HWY_INLINE void ForKindOf(const StoredRows& rows, const Body& body) {
  const auto for_encoding = [&](auto rounding) KVBLEND_BF16_ATTR {
    switch (rows.encoding) {
      case KvEncoding::kInt8:
        return body(std::integral_constant<KvEncoding, KvEncoding::kInt8>(), rounding);
      case KvEncoding::kInt4:
        return body(std::integral_constant<KvEncoding, KvEncoding::kInt4>(), rounding);
      case KvEncoding::kFp8:
        return body(std::integral_constant<KvEncoding, KvEncoding::kFp8>(), rounding);
      default:
        return body(std::integral_constant<KvEncoding, KvEncoding::kBF16>(), rounding);
    }
  };
  if (rows.correction != nullptr) return for_encoding(std::type_identity<Rounding>());
  for_encoding(std::type_identity<void>());
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#endif  // per-target include guard
