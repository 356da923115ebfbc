// A sequence's part in choosing its next token from a row of logits: its options, the random numbers, and
// what its penalties and biases make of the logits of single tokens. The steps themselves are
// kernels/sampling.h's, and run where the logits are.
//
// The same options, seed and logits give the same tokens on every platform: the generator is mt19937_64
// (fixed by the C++ standard), the mapping to a token is this project's own. Greedy decoding draws nothing.
//
// Thread safety: none; one sampler per sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/generate/sampling_options.h"
#include "kernels/sampling.h"

namespace kvblend::generate {

/// A token and its natural log-probability under the model's own distribution.
struct IdLogprob {
  int32_t token_id = 0;
  double logprob = 0;
};

struct Sampled {
  int32_t token_id = 0;
  double logprob = 0;               // 0 unless top_logprobs >= 0
  std::vector<IdLogprob> top = {};  // top_logprobs of them, most likely first
};

class Sampler {
 public:
  /// kInvalidArgument as ValidateSampling. A seed of 0 is replaced by a random one below 2^53.
  static absl::StatusOr<Sampler> Create(const SamplingOptions& options, int32_t vocab_size);

  /// How the next token is to be chosen; advances the generator. The span in it is valid until the next
  /// Accept.
  kernels::SamplingSpec Next();

  /// What the (index + 1)-th call of Next from now on will give, whatever tokens are accepted until then.
  /// REQUIRES: index == 0, or can_look_ahead()
  kernels::SamplingSpec Peek(int32_t index);
  /// Whether Peek works for later tokens: without penalties, how a token is sampled does not depend on the
  /// tokens before it.
  bool can_look_ahead() const { return !penalises_repeated_ && !penalises_answer_; }

  /// What came of Next(). kInternal when a logit is not finite.
  absl::StatusOr<Sampled> Describe(const kernels::SampledToken& sampled) const;

  /// Next, the sampling itself and Describe, for logits in host memory. The caller Accepts the token to go
  /// on. kInternal also when the row has the wrong length.
  absl::StatusOr<Sampled> Sample(absl::Span<const float> logits /* [vocab_size] */);

  /// Puts a generated token under the penalties. Ids outside the vocabulary are ignored: they have no logit.
  void Accept(int32_t token_id);
  /// Puts a token of the prompt under the repetition penalty; the others are for the answer alone.
  void AcceptOfPrompt(int32_t token_id);

  /// Never 0.
  uint64_t seed() const { return seed_; }

 private:
  Sampler(const SamplingOptions& options, int32_t vocab_size, uint64_t seed);

  /// The token's change, made where there is none yet.
  kernels::LogitChange& ChangeOf(int32_t token_id);

  kernels::SamplingSpec spec_;  // without what changes from token to token
  int32_t vocab_size_;
  uint64_t seed_;
  std::mt19937_64 random_;
  std::deque<double> drawn_;  // from it, and not used yet
  bool penalises_repeated_, penalises_answer_;
  double presence_penalty_, frequency_penalty_;
  std::map<int32_t, double> logit_bias_;
  absl::flat_hash_map<int32_t, size_t> place_;  // of a token's change
  std::vector<kernels::LogitChange> changes_;
  std::vector<int32_t> times_;  // that a token is in the answer, beside its change
};

}  // namespace kvblend::generate
