// What the products of decode attention share, on every instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/cache_control.h"

namespace kvblend::kernels::simd {

/// Fetches `bytes` from `data` on.
inline void PrefetchBytes(const std::byte* data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t byte = 0; byte < bytes; byte += kLine) hwy::Prefetch(data + byte);
}

/// Fetches `bytes`, the length of a row, while the row is multiplied that lies `offset` bytes behind `rows`:
/// the row of `next` that corresponds to it, or, where that is null, what lies some rows ahead. The
/// processor's own prefetcher alone stops at every 4 KiB.
inline void PrefetchAhead(const void* rows, const void* next, int64_t offset, int64_t bytes) {
  constexpr int64_t kBytesAhead = 4096;
  PrefetchBytes(next != nullptr ? static_cast<const std::byte*>(next) + offset
                                : static_cast<const std::byte*>(rows) + offset + kBytesAhead,
                bytes);
}

/// Calls run(number of heads as a constant, first head) for kMost <= 4 heads at a time, and for the rest.
template <int kMost, typename Run>
void ForHeads(int64_t group, const Run& run) {
  static_assert(kMost >= 3 && kMost <= 4);
  int64_t g = 0;
  for (; g + kMost <= group; g += kMost) run(std::integral_constant<int, kMost>(), g);
  switch (group - g) {
    case 1:
      run(std::integral_constant<int, 1>(), g);
      break;
    case 2:
      run(std::integral_constant<int, 2>(), g);
      break;
    case 3:
      run(std::integral_constant<int, 3>(), g);
      break;
    default:
      break;
  }
}

}  // namespace kvblend::kernels::simd
