// Chooses the next token from a row of logits.
//
// The steps, in this order, each working on what the one before left over:
//   1. repetition penalty (Keskar et al. 2019, CTRL): the logit of every token that was accepted before,
//   however
//      often, is divided by the penalty when positive and multiplied by it when negative;
//   2. temperature: logits are divided by it; 0 takes the most likely token and ends here;
//   3. top-k: the k most likely tokens stay;
//   4. top-p (Holtzman et al. 2020): of the distribution renormalised over what is left, the fewest tokens,
//   most
//      likely first, whose probabilities reach p;
//   5. min-p (Nguyen et al. 2024): tokens at least min_p times as likely as the most likely one;
//   6. one draw.
// Equal logits: the lower token id counts as more likely. Log-probabilities are the model's own: before
// step 1.
//
// The same options, seed and logits give the same tokens on every platform: the generator is mt19937_64
// (fixed by the C++ standard), the mapping to a token and exp() are this code's own. Greedy decoding draws
// nothing.
//
// Thread safety: none; one sampler per sequence.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/generate/log_softmax.h"
#include "engine/generate/sampling_options.h"
#include "engine/request.h"

namespace kvblend::generate {

/// A token and its natural log-probability under the model's own distribution.
struct IdLogprob {
  int32_t token_id = 0;
  double logprob = 0;
};

struct Sampled {
  int32_t token_id = 0;
  double logprob = 0;          // 0 unless top_logprobs >= 0
  std::vector<IdLogprob> top;  // top_logprobs of them, most likely first
};

class Sampler {
 public:
  /// kInvalidArgument as ValidateSampling. A seed of 0 is replaced by a random one.
  static absl::StatusOr<Sampler> Create(const SamplingOptions& options, int32_t vocab_size);

  /// Chooses a token; the caller Accepts it to go on. kInternal when a logit is not finite or the row has the
  /// wrong length.
  absl::StatusOr<Sampled> Sample(absl::Span<const float> logits /* [vocab_size] */);

  /// Puts a token under the repetition penalty: every generated one, and those of the prompt that should
  /// count. Ids outside the vocabulary are ignored: they have no logit.
  void Accept(int32_t token_id);

  /// Never 0.
  uint64_t seed() const { return seed_; }

 private:
  struct Weighted {
    TokenLogit token;
    double weight = 0;  // probability relative to the most likely token's
  };

  Sampler(const SamplingOptions& options, int32_t vocab_size, uint64_t seed);

  /// `logits` with the penalty applied, in penalized_ when there is anything to apply.
  absl::Span<const float> Penalize(absl::Span<const float> logits);
  int32_t Draw(absl::Span<const float> logits);
  /// Steps 3 to 5; the result is in candidates_.
  void Filter(absl::Span<const float> logits);
  void KeepTopP(double total_weight);

  // Only the fields that choose tokens.
  double temperature_;
  int32_t top_k_;
  double top_p_;
  double min_p_;
  double repetition_penalty_;
  int32_t top_logprobs_;

  int32_t vocab_size_;
  uint64_t seed_;
  std::mt19937_64 random_;
  std::vector<bool> is_accepted_;     // [vocab_size]; empty without a penalty
  std::vector<int32_t> accepted_;     // each token once
  std::vector<float> penalized_;      // scratch
  std::vector<Weighted> candidates_;  // scratch
  std::vector<Weighted> in_nucleus_;  // scratch
};

}  // namespace kvblend::generate
