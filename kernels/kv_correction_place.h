// Where in a chunk a token stands, as learned corrections tell it (kernels/kv_correction.h). Also for device
// code.
#pragma once

#include <cstdint>
#include <limits>

namespace kvblend::kernels {

/// Ranges of tokens of a chunk, each with an offset of its own.
inline constexpr int64_t kNumKvCorrectionPlaces = 8;

/// The range of the chunk's token number `token`. They begin at tokens 0, 1, 4, 16, 64, 128, 256 and 512: the
/// nearer to the beginning of its chunk, the more of what it attends to is missing where the chunk was
/// computed.
constexpr int64_t KvCorrectionPlace(int64_t token) {
  return (token >= 1) + (token >= 4) + (token >= 16) + (token >= 64) + (token >= 128) + (token >= 256) +
         (token >= 512);
}

/// The first token behind that range.
constexpr int64_t KvCorrectionPlaceEnd(int64_t token) {
  int64_t end = token < 1 ? 1 : 4;
  while (end <= token) end *= end < 64 ? 4 : 2;
  return end <= 512 ? end : std::numeric_limits<int64_t>::max();
}

}  // namespace kvblend::kernels
