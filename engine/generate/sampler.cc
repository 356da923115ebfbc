#include "engine/generate/sampler.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "engine/generate/log_softmax.h"
#include "kernels/host/sample_row.h"

namespace kvblend::generate {
namespace {

static_assert(kMaxTopLogprobs <= kernels::kMaxTopTokens);

/// 53 bits: clients whose numbers are doubles, such as JavaScript's, can send the seed back as it is.
uint64_t RandomSeed() {
  std::random_device device;
  uint64_t seed = 0;
  while (seed == 0) seed = ((static_cast<uint64_t>(device()) << 32) | static_cast<uint32_t>(device())) >> 11;
  return seed;
}

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(const SamplingOptions& options, int32_t vocab_size) {
  if (vocab_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("vocab_size is ", vocab_size, "; allowed: 1 or more"));
  }
  if (absl::Status valid = ValidateSampling(options, vocab_size); !valid.ok()) return valid;
  return Sampler(options, vocab_size, options.seed != 0 ? options.seed : RandomSeed());
}

Sampler::Sampler(const SamplingOptions& options, int32_t vocab_size, uint64_t seed)
    : spec_{.temperature = options.temperature,
            .top_k = options.top_k,
            .top_p = options.top_p,
            .min_p = options.min_p,
            .repetition_penalty = options.repetition_penalty,
            .num_top = options.top_logprobs},
      vocab_size_(vocab_size),
      seed_(seed),
      random_(seed),
      penalises_repeated_(options.repetition_penalty != 1.0),
      penalises_answer_(options.presence_penalty != 0 || options.frequency_penalty != 0),
      presence_penalty_(options.presence_penalty),
      frequency_penalty_(options.frequency_penalty),
      logit_bias_(options.logit_bias) {
  for (const auto& [token, bias] : logit_bias_) ChangeOf(token).added = static_cast<float>(bias);
}

kernels::LogitChange& Sampler::ChangeOf(int32_t token_id) {
  const auto [found, is_new] = place_.try_emplace(token_id, changes_.size());
  if (is_new) {
    changes_.push_back({.token_id = token_id});
    times_.push_back(0);
  }
  return changes_[found->second];
}

void Sampler::AcceptOfPrompt(int32_t token_id) {
  if (penalises_repeated_ && token_id >= 0 && token_id < vocab_size_) ChangeOf(token_id).repeated = true;
}

void Sampler::Accept(int32_t token_id) {
  AcceptOfPrompt(token_id);
  if (!penalises_answer_ || token_id < 0 || token_id >= vocab_size_) return;
  kernels::LogitChange& change = ChangeOf(token_id);
  const int32_t times = ++times_[place_[token_id]];
  const auto bias = logit_bias_.find(token_id);
  change.added = static_cast<float>((bias != logit_bias_.end() ? bias->second : 0) - presence_penalty_ -
                                    times * frequency_penalty_);
}

kernels::SamplingSpec Sampler::Peek(int32_t index) {
  kernels::SamplingSpec spec = spec_;
  spec.changes = changes_;
  if (spec.temperature == 0) return spec;
  // 53 random bits: a double in [0, 1).
  while (static_cast<int32_t>(drawn_.size()) <= index) {
    drawn_.push_back(static_cast<double>(random_() >> 11) * 0x1p-53);
  }
  spec.uniform = drawn_[index];
  return spec;
}

kernels::SamplingSpec Sampler::Next() {
  const kernels::SamplingSpec spec = Peek(0);
  if (!drawn_.empty()) drawn_.pop_front();
  return spec;
}

absl::StatusOr<Sampled> Sampler::Describe(const kernels::SampledToken& sampled) const {
  if (sampled.invalid_token >= 0) return InvalidLogit(sampled.invalid_token, sampled.invalid_logit);
  Sampled described{.token_id = sampled.token_id};
  if (!spec_.wants_logprobs()) return described;
  const double log_sum = sampled.LogSumExp(vocab_size_);
  described.logprob = sampled.logit - log_sum;
  for (int32_t i = 0; i < sampled.num_top; ++i) {
    described.top.push_back({sampled.top_ids[i], sampled.top_logits[i] - log_sum});
  }
  return described;
}

absl::StatusOr<Sampled> Sampler::Sample(absl::Span<const float> logits) {
  if (logits.size() != static_cast<size_t>(vocab_size_)) {
    return absl::InternalError(
        absl::StrCat("row of ", logits.size(), " logits; the vocabulary has ", vocab_size_, " tokens"));
  }
  return Describe(kernels::SampleRow(logits, Next()));
}

}  // namespace kvblend::generate
