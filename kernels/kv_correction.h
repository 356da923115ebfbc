// A correction of stored KV: what stands before a chunk in a prompt moves its K and V largely in a way that
// does not depend on the text, and that can be learned (docs/algorithm.md, "Learned corrections"). For one
// layer and a token whose stored K (before RoPE) and V are x = [k | v], 2 * cols values, the corrected ones
// are
//
//     y = scale * x + offset[place] + (x down) up
//
// scale and offset per element, down and up a map of low rank; place says where in its chunk the token
// stands.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/kv_correction_place.h"

namespace kvblend::kernels {

inline constexpr int64_t kMaxKvCorrectionRank = 1024;

/// Every value is finite.
struct KvCorrectionSpec {
  int64_t cols = 0;                // of K, and of V: num_kv_heads * head_dim
  int64_t rank = 0;                // 0 .. kMaxKvCorrectionRank; 0: scale and offset alone
  absl::Span<const float> scale;   // [2 * cols]
  absl::Span<const float> offset;  // [kNumKvCorrectionPlaces, 2 * cols]
  absl::Span<const float> down;    // [2 * cols, rank]
  absl::Span<const float> up;      // [rank, 2 * cols]
};

/// A spec in the form that a backend wants, opaque to callers. Immutable after creation, so any number of
/// threads may use it. Must not outlive its backend.
class KvCorrection {
 public:
  virtual ~KvCorrection() = default;
  virtual int64_t cols() const = 0;
};

}  // namespace kvblend::kernels
