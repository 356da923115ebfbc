// Log-probabilities of a row of logits in host memory, as kernels/sampling.h defines them.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::generate {

/// kInternal naming a token whose logit is NaN or infinite. Such logits are wrong, and sampling from them
/// would hide that.
absl::Status InvalidLogit(int32_t token_id, float logit);

/// log(sum_i exp(logits[i])), so that a token's log-probability (natural) is its logit minus this.
/// InvalidLogit of the first such token; kInternal also for an empty row.
absl::StatusOr<double> LogSumExp(absl::Span<const float> logits /* [vocab_size] */);

/// All log-probabilities. Errors as LogSumExp.
absl::StatusOr<std::vector<float>> LogSoftmax(absl::Span<const float> logits /* [vocab_size] */);

}  // namespace kvblend::generate
