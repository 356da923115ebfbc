// Where in a chunk a token stands, as learned corrections tell it (kernels/kv_correction.h). Also for device code.
#pragma once

#include <cstdint>

namespace kvblend::kernels {

/// Ranges of tokens of a chunk, each with an offset of its own.
inline constexpr int64_t kNumKvCorrectionPlaces = 8;

/// The range of the chunk's token number `token`. They begin at tokens 0, 1, 4, 16, 64, 128, 256 and 512: the nearer to
/// the beginning of its chunk, the more of what it attends to is missing where the chunk was computed.
constexpr int64_t KvCorrectionPlace(int64_t token) {
  return (token >= 1) + (token >= 4) + (token >= 16) + (token >= 64) + (token >= 128) + (token >= 256) +
         (token >= 512);
}

}  // namespace kvblend::kernels
