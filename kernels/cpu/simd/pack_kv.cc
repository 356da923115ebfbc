// Keys and values in the layout of tiles.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/pack_kv.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// clang-format off
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd-inl.h"
// clang-format on
#include <algorithm>
#include <cstring>

#include "kernels/cpu/machine/tiles.h"
#include "kernels/cpu/simd/simd.h"

HWY_BEFORE_NAMESPACE();
namespace kvblend::kernels::simd::HWY_NAMESPACE {

// Four keys by four words are transposed at a time, in vectors that every instruction set has.
// Returns the first step that is left.
HWY_INLINE int64_t PackFourKeys([[maybe_unused]] const uint32_t* words, [[maybe_unused]] int64_t steps,
                                [[maybe_unused]] uint32_t* panel) {
  int64_t step = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> d64;
  for (; step + 4 <= steps; step += 4) {
    const auto a = hn::LoadU(d, words + step), b = hn::LoadU(d, words + steps + step),
               c = hn::LoadU(d, words + 2 * steps + step), e = hn::LoadU(d, words + 3 * steps + step);
    const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b)),
               ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b)),
               ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e)),
               ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
    uint32_t* out = panel + step * kPanelKeys;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, out + kPanelKeys);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, out + 2 * kPanelKeys);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, out + 3 * kPanelKeys);
  }
#endif
  return step;
}

void PackKeysImpl(const void* rows, int64_t num_keys, int64_t head_dim, int64_t elements_per_word,
                  uint32_t* panel, int64_t column) {
  const int64_t steps = (head_dim + elements_per_word - 1) / elements_per_word,
                element_bytes = 4 / elements_per_word;
  const bool whole_words = head_dim % elements_per_word == 0;
  for (int64_t first = 0; first < num_keys; first += 4) {
    const auto* keys = static_cast<const std::byte*>(rows) + first * head_dim * element_bytes;
    const int64_t count = std::min(num_keys - first, int64_t{4});
    uint32_t* target = panel + column + first;
    int64_t step = 0;
    if (count == 4 && whole_words) {
      step = PackFourKeys(reinterpret_cast<const uint32_t*>(keys), steps, target);
    }
    for (; step < steps; ++step) {
      for (int64_t key = 0; key < count; ++key) {
        const int64_t element = step * elements_per_word;
        uint32_t word = 0;
        std::memcpy(&word, keys + (key * head_dim + element) * element_bytes,
                    std::min(elements_per_word, head_dim - element) * element_bytes);
        target[step * kPanelKeys + key] = word;
      }
    }
  }
}

void PackValuesImpl(const void* rows, int64_t num_keys, int64_t head_dim, int64_t elements_per_word,
                    uint32_t* out, int64_t columns) {
  if (elements_per_word == 1) {
    const auto* values = static_cast<const float*>(rows);
    for (int64_t key = 0; key < num_keys; ++key, out += columns) {
      std::memcpy(out, values + key * head_dim, head_dim * sizeof(float));
      std::memset(out + head_dim, 0, (columns - head_dim) * sizeof(float));
    }
  } else {
    const auto* values = static_cast<const uint16_t*>(rows);
    for (int64_t key = 0; key < num_keys; key += 2, out += columns) {
      const uint16_t* even = values + key * head_dim;
      const uint16_t* odd = key + 1 < num_keys ? even + head_dim : nullptr;
      int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR
      const hn::FixedTag<uint16_t, 8> d16;
      const hn::FixedTag<uint32_t, 4> d;
      for (; i + 8 <= head_dim; i += 8) {
        const auto a = hn::LoadU(d16, even + i), b = odd != nullptr ? hn::LoadU(d16, odd + i) : hn::Zero(d16);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d16, a, b)), d, out + i);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d16, a, b)), d, out + i + 4);
      }
#endif
      for (; i < head_dim; ++i) out[i] = even[i] | (odd != nullptr ? uint32_t{odd[i]} << 16 : 0u);
      std::memset(out + head_dim, 0, (columns - head_dim) * sizeof(uint32_t));
    }
  }
}

}  // namespace kvblend::kernels::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvblend::kernels::simd {

HWY_EXPORT(PackKeysImpl);
HWY_EXPORT(PackValuesImpl);

void PackKeys(const void* rows, int64_t num_keys, int64_t head_dim, int64_t elements_per_word,
              uint32_t* panel, int64_t column) {
  HWY_DYNAMIC_DISPATCH(PackKeysImpl)(rows, num_keys, head_dim, elements_per_word, panel, column);
}
void PackValues(const void* rows, int64_t num_keys, int64_t head_dim, int64_t elements_per_word,
                uint32_t* out, int64_t columns) {
  HWY_DYNAMIC_DISPATCH(PackValuesImpl)(rows, num_keys, head_dim, elements_per_word, out, columns);
}

}  // namespace kvblend::kernels::simd
#endif  // HWY_ONCE
