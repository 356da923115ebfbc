// What every sampling does with a whole row of logits. The loops test and order floats by their bits, as
// integers: comparisons of floats, which NaN makes special, would keep compilers from vectorising them.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace kvblend::kernels {

/// The first token whose logit is NaN or infinite; -1: there is none.
int32_t FindInvalid(absl::Span<const float> logits);

/// The first token of the largest logit; 0 and -0 are equal. REQUIRES: all finite, at least one
int32_t MostLikely(absl::Span<const float> logits);

}  // namespace kvblend::kernels
