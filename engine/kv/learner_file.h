// What a learner has seen, as a file. Little-endian:
//
//       0  "kvblmomt"                          64  chunks fitted, chunks kept back, tokens (u64)
//       8  version (u32): 2                    88  version of the correction that learning began with, or zeros
//      12  anchoring (u32): 0 anchored,       104  what names the learner among those that share what they have seen, or 0 (u64)
//          1 isolated                         112  as of the last fit: chunks fitted here, and in all (u64)
//      16  fingerprint of the model           128  per layer the moments of what was fitted, then per layer of what was
//      48  encoding of stored KV, layers,          kept back: weight, means of x and d, sums of dd (f64), of xx and
//          KV heads, head_dim and the kind         xd (f32): engine/kv/pair_moments.h
//          of moments (u32, u32, u32,         end  XXH3-64 of all bytes before it
//          u16, u16)
//
// Version 1, which is still read, lacks the counts as of the last fit: it counts as if the last fit had been
// of all that is there.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/kv/correction_learner.h"

namespace kvblend::kv {

/// What such files begin with.
inline constexpr std::string_view kLearnerMagic = "kvblmomt";

/// REQUIRES: sizes as the options say. Where nothing was seen, moments of nothing stand there.
std::string EncodeLearner(const LearnerOptions& options, const LearnerState& state);

/// How many that are.
int64_t LearnerFileBytes(const LearnerOptions& options);

/// kInvalidArgument naming what is wrong with the bytes, or of another model, anchoring, encoding or size
/// than the options'.
absl::StatusOr<LearnerState> DecodeLearner(const LearnerOptions& options, std::string_view bytes);

}  // namespace kvblend::kv
