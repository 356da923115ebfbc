// Stored KV straight into int8 pages: decoded, corrected, rotated and rounded to codes in registers. Pages'
// codes have a step and no offset, stored ones of int8 and int4 have both, so not even values can be copied:
// a group gets a step of its own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/load_codes.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
#include "kernels/cpu/simd/stored_rows-inl.h"
// clang-format on
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>
#include <utility>

#include "kernels/cpu/simd/simd.h"
#include "kernels/host/page_codec.h"

KVBLEND_BEFORE_BF16_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// A group of a page's channels.
constexpr size_t kGroupPairs = kPageGroup / 2;
constexpr size_t kGroupVectors = kGroupPairs / hn::MaxLanes(PairF32());
struct PageGroup {
  HWY_INLINE Pairs& operator[](size_t i) { return vectors[i]; }
  HWY_INLINE const Pairs& operator[](size_t i) const { return vectors[i]; }
  Pairs vectors[kGroupVectors];
};

// As PageValues::Store does it.
HWY_INLINE void StoreGroup(const PageGroup& group, const PageCodes& out, int64_t element) {
  const PairF32 d;
  const PairI32 d32;
  const hn::Rebind<uint16_t, PairF32> d16;
  // Magnitudes are in the order of their bits, and what is not finite is the largest of all.
  const auto magnitude = hn::Set(d32, 0x7FFFFFFF);
  auto top = hn::Zero(d32);
  for (size_t i = 0; i < kGroupVectors; ++i) {
    top = hn::Max(top, hn::Max(hn::And(hn::BitCast(d32, group[i].even), magnitude),
                               hn::And(hn::BitCast(d32, group[i].odd), magnitude)));
  }
  const auto largest = std::bit_cast<float>(hn::GetLane(hn::MaxOfLanes(d32, top)));
  const bool finite = std::isfinite(largest);
  const uint16_t step = CeilToBf16(finite ? largest / kLargestPageCode : largest * 0.0f);  // or NaN
  out.steps[element / kPageGroup] = step;
  auto* codes = reinterpret_cast<uint16_t*>(out.codes + element);
  if (!finite) {
    std::fill_n(codes, kGroupPairs, uint16_t{0});
    return;
  }
  const auto inverse = hn::Set(d, InverseStep(step));
  const auto low_byte = hn::Set(d32, 0xFF);
  for (size_t i = 0; i < kGroupVectors; ++i) {
    // Steps round up, so that no code passes 127.
    const auto even = hn::NearestInt(hn::Mul(group[i].even, inverse)),
               odd = hn::NearestInt(hn::Mul(group[i].odd, inverse));
    const auto pair = hn::Or(hn::And(even, low_byte), hn::ShiftLeft<8>(hn::And(odd, low_byte)));
    hn::StoreU(hn::DemoteTo(d16, pair), d16, codes + i * hn::Lanes(d));
  }
}

// A group's channels of K.
template <class Channels, size_t... kVector>
HWY_INLINE std::array<Channels, sizeof...(kVector)> GroupChannels(const StoredRows& rows, size_t pair,
                                                                  std::index_sequence<kVector...>) {
  return {Channels(rows, pair + kVector * hn::Lanes(PairF32()))...};
}
template <class Channels>
HWY_INLINE auto GroupChannels(const StoredRows& rows, size_t pair) {
  return GroupChannels<Channels>(rows, pair, std::make_index_sequence<kGroupVectors>());
}

template <KvEncoding kEncoding, class Correction>
void LoadKeyCodesInterleaved(const StoredRows& rows, const float* const* cos, const PageCodes& out) {
  const PairF32 d;
  const size_t head_pairs = out.head_dim / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    for (size_t first = 0; first < head_pairs; first += kGroupPairs) {
      const size_t pair = head * head_pairs + first;
      const auto channels = GroupChannels<KeyChannels<kEncoding, Correction>>(rows, pair);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const std::byte* row = rows.codes + r * rows.row_bytes;
        fetcher.Step(kGroupVectors);
        PageGroup group;
        for (size_t i = 0; i < kGroupVectors; ++i) {
          const size_t at = i * hn::Lanes(d);
          group[i] = RotatedPairs(channels[i].Load(row, pair + at), cos[r] + first + at,
                                  cos[r] + head_pairs + first + at);
        }
        StoreGroup(group, out, head * out.head_stride + out.slots[r] + 2 * static_cast<int64_t>(first));
      }
    }
  }
}

template <KvEncoding kEncoding, class Correction>
void LoadKeyCodesSplitHalf(const StoredRows& rows, const float* const* cos, const PageCodes& out) {
  const PairF32 d;
  const size_t half = out.head_dim / 2, half_pairs = half / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t head = 0; head < out.num_heads; ++head) {
    for (size_t first = 0; first < half_pairs; first += kGroupPairs) {
      const size_t pair = 2 * head * half_pairs + first;
      const auto a_channels = GroupChannels<KeyChannels<kEncoding, Correction>>(rows, pair),
                 b_channels = GroupChannels<KeyChannels<kEncoding, Correction>>(rows, pair + half_pairs);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const std::byte* row = rows.codes + r * rows.row_bytes;
        fetcher.Step(2 * kGroupVectors);
        PageGroup low, high;
        for (size_t i = 0; i < kGroupVectors; ++i) {
          const size_t at = i * hn::Lanes(d), channel = 2 * (first + at);
          const Halves x = RotatedHalves(a_channels[i].Load(row, pair + at),
                                         b_channels[i].Load(row, pair + half_pairs + at), cos[r] + channel,
                                         cos[r] + half + channel);
          low[i] = x.low;
          high[i] = x.high;
        }
        const int64_t element = head * out.head_stride + out.slots[r] + 2 * static_cast<int64_t>(first);
        StoreGroup(low, out, element);
        StoreGroup(high, out, element + static_cast<int64_t>(half));
      }
    }
  }
}

template <KvEncoding kEncoding, class Correction>
void LoadValueCodesOf(const StoredRows& rows, const PageCodes& out) {
  const PairF32 d;
  const size_t head_pairs = out.head_dim / 2;
  Fetcher<kEncoding> fetcher(rows);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const ValueRow<kEncoding, !std::is_void_v<Correction>> row(rows, r);
    for (int64_t head = 0; head < out.num_heads; ++head) {
      for (size_t first = 0; first < head_pairs; first += kGroupPairs) {
        fetcher.Step(kGroupVectors);
        PageGroup group;
        for (size_t i = 0; i < kGroupVectors; ++i) {
          const size_t pair = head * head_pairs + first + i * hn::Lanes(d);
          group[i] = row.Load(pair);
          if constexpr (!std::is_void_v<Correction>) group[i] = Correction::Round(group[i]);
        }
        StoreGroup(group, out, head * out.head_stride + out.slots[r] + 2 * static_cast<int64_t>(first));
      }
    }
  }
}

void LoadCodesImpl(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageCodes& out) {
  ForKindOf<SoftwareRounding>(rows, [&](auto encoding, auto correction) KVBLEND_BF16_ATTR {
    using Correction = typename decltype(correction)::type;
    if (cos == nullptr) return LoadValueCodesOf<encoding(), Correction>(rows, out);
    if (layout == RopeLayout::kSplitHalf) {
      return LoadKeyCodesSplitHalf<encoding(), Correction>(rows, cos, out);
    }
    LoadKeyCodesInterleaved<encoding(), Correction>(rows, cos, out);
  });
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
KVBLEND_AFTER_BF16_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(LoadCodesImpl);

void LoadKeyCodes(const StoredRows& rows, RopeLayout layout, const float* const* cos, const PageCodes& out) {
  HWY_DYNAMIC_DISPATCH(LoadCodesImpl)(rows, layout, cos, out);
}

void LoadValueCodes(const StoredRows& rows, const PageCodes& out) {
  HWY_DYNAMIC_DISPATCH(LoadCodesImpl)(rows, RopeLayout::kInterleaved, nullptr, out);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
