// Log-probabilities of a row of logits. Sums are kept in double, in the order of the token ids.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace kvblend::generate {

/// kInternal naming the first token whose logit is NaN or infinite: the model computed rubbish, and any token
/// drawn from it would hide that. kInternal also for an empty row.
absl::Status CheckFinite(absl::Span<const float> logits /* [vocab_size] */);

/// log(sum_i exp(logits[i])), so that a token's log-probability (natural) is its logit minus this.
/// kInternal as CheckFinite.
absl::StatusOr<double> LogSumExp(absl::Span<const float> logits /* [vocab_size] */);

/// All log-probabilities. kInternal as CheckFinite.
absl::StatusOr<std::vector<float>> LogSoftmax(absl::Span<const float> logits /* [vocab_size] */);

struct TokenLogit {
  int32_t token_id = 0;
  float logit = 0;
};

/// More likely first; equal logits: the lower id first. A strict order, so results do not depend on the
/// standard library's algorithms.
inline bool MoreLikely(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

/// The min(k, vocab_size) most likely tokens, most likely first; one pass with a heap of k, no sort of the
/// vocabulary. REQUIRES: k >= 0, logits finite.
std::vector<TokenLogit> TopTokens(absl::Span<const float> logits /* [vocab_size] */, int32_t k);

}  // namespace kvblend::generate
