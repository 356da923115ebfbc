// What SampleTokens takes and gives: how a row of logits becomes a token.
//
// The steps, in this order, each working on what the one before left over:
//   1. changes: the logit of a token that is repeated is divided by the repetition penalty (Keskar et al.
//      2019, CTRL) when positive and multiplied by it when negative; then what the token's change adds is
//      added;
//   2. temperature: logits are divided by it; 0 takes the most likely token and ends here;
//   3. top-k: the k most likely tokens stay;
//   4. top-p (Holtzman et al. 2020): of the distribution renormalised over what is left, the fewest tokens,
//      most likely first, whose probabilities reach p;
//   5. min-p (Nguyen et al. 2024): tokens at least min_p times as likely as the most likely one;
//   6. one draw: tokens in order, most likely first where top-k or top-p is on, by their ids otherwise.
// Equal logits: the lower token id counts as more likely. Log-probabilities are the model's own: before
// step 1.
//
// Likelihoods are whole numbers: exp((logit - largest) / temperature) in units of 2^-WeightBits. Their sums
// do not depend on the order, so one thread and a thousand draw the same token from the same logits, on every
// machine.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/sampled_token.h"

namespace kvblend::kernels {

struct SamplingSpec {
  double temperature = 0;                      // finite, at least 0
  int32_t top_k = 0;                           // 0: off
  double top_p = 1;                            // above 0, up to 1; 1: off
  double min_p = 0;                            // 0 to 1; 0: off
  double repetition_penalty = 1;               // finite, above 0
  absl::Span<const LogitChange> changes = {};  // each token once
  double uniform = 0;                          // in [0, 1): what the draw is made of
  int32_t num_top = -1;       // -1: no log-probabilities; n <= kMaxTopTokens: also of the n most likely
  int32_t scored_token = -1;  // whose logit to report; -1: none

  bool wants_logprobs() const { return num_top >= 0; }
};

}  // namespace kvblend::kernels
