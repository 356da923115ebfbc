// Checks of what a client may ask of the sampler.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/api/request.h"

namespace kvblend::generate {

inline constexpr int kMaxStopStrings = 16;
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr int kMaxBiasedTokens = 1024;

/// kInvalidArgument naming the field, its value and what is allowed. Not checked here: max_tokens against the
/// context (depends on the prompt) and the UTF-8 of stop strings (the engine checks all texts alike).
absl::Status ValidateSampling(const SamplingOptions& options, int32_t vocab_size);

}  // namespace kvblend::generate
