// What the kernels of x86's instruction sets include before they choose theirs (kernels-inl.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12's own headers pass undefined vectors where a mask takes all lanes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

#include "hwy/base.h"
#include "hwy/cache_control.h"
#include "kernels/cpu/linear/codes/kernels.h"

namespace kvblend::kernels {

/// Four codes of a row, or a pair of codes.
inline int32_t WordOfCodes(const void* codes) {
  int32_t word;
  std::memcpy(&word, codes, sizeof(word));
  return word;
}

}  // namespace kvblend::kernels
