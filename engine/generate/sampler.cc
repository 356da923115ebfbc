#include "engine/generate/sampler.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/generate/deterministic_exp.h"

namespace kvblend::generate {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  uint64_t seed = 0;
  while (seed == 0) seed = (static_cast<uint64_t>(device()) << 32) | static_cast<uint32_t>(device());
  return seed;
}

}  // namespace

absl::StatusOr<Sampler> Sampler::Create(const SamplingOptions& options, int32_t vocab_size) {
  if (absl::Status valid = ValidateSampling(options); !valid.ok()) return valid;
  if (vocab_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat("vocab_size is ", vocab_size, "; allowed: 1 or more"));
  }
  return Sampler(options, vocab_size, options.seed != 0 ? options.seed : RandomSeed());
}

Sampler::Sampler(const SamplingOptions& options, int32_t vocab_size, uint64_t seed)
    : temperature_(options.temperature),
      top_k_(options.top_k),
      top_p_(options.top_p),
      min_p_(options.min_p),
      repetition_penalty_(options.repetition_penalty),
      top_logprobs_(options.top_logprobs),
      vocab_size_(vocab_size),
      seed_(seed),
      random_(seed) {
  if (repetition_penalty_ != 1.0) is_accepted_.resize(vocab_size);
}

void Sampler::Accept(int32_t token_id) {
  if (is_accepted_.empty() || token_id < 0 || token_id >= vocab_size_ || is_accepted_[token_id]) return;
  is_accepted_[token_id] = true;
  accepted_.push_back(token_id);
}

absl::StatusOr<Sampled> Sampler::Sample(absl::Span<const float> logits) {
  if (logits.size() != static_cast<size_t>(vocab_size_)) {
    return absl::InternalError(
        absl::StrCat("row of ", logits.size(), " logits; the vocabulary has ", vocab_size_, " tokens"));
  }
  if (absl::Status finite = CheckFinite(logits); !finite.ok()) return finite;
  Sampled sampled;
  const absl::Span<const float> penalized = Penalize(logits);
  if (temperature_ == 0) {
    // The first of the largest.
    sampled.token_id =
        static_cast<int32_t>(std::max_element(penalized.begin(), penalized.end()) - penalized.begin());
  } else {
    sampled.token_id = Draw(penalized);
  }
  if (top_logprobs_ < 0) return sampled;
  absl::StatusOr<double> log_sum = LogSumExp(logits);
  if (!log_sum.ok()) return log_sum.status();
  sampled.logprob = logits[sampled.token_id] - *log_sum;
  for (const TokenLogit& token : TopTokens(logits, top_logprobs_)) {
    sampled.top.push_back({token.token_id, token.logit - *log_sum});
  }
  return sampled;
}

absl::Span<const float> Sampler::Penalize(absl::Span<const float> logits) {
  if (accepted_.empty()) return logits;
  penalized_.assign(logits.begin(), logits.end());
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (int32_t token_id : accepted_) {
    const double logit = logits[token_id];
    const double changed = logit > 0 ? logit / repetition_penalty_ : logit * repetition_penalty_;
    penalized_[token_id] = static_cast<float>(std::clamp(changed, -kLargest, kLargest));
  }
  return penalized_;
}

int32_t Sampler::Draw(absl::Span<const float> logits) {
  Filter(logits);
  double total = 0;
  for (const Weighted& candidate : candidates_) total += candidate.weight;
  // 53 random bits: a double in [0, 1).
  const double target = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  double reached = 0;
  int32_t chosen = candidates_.front().token.token_id;
  for (const Weighted& candidate : candidates_) {
    // Where rounding takes `target` up to `total`, the last token that can be drawn at all.
    if (candidate.weight > 0) chosen = candidate.token.token_id;
    reached += candidate.weight;
    if (reached > target) break;
  }
  return chosen;
}

void Sampler::Filter(absl::Span<const float> logits) {
  candidates_.clear();
  if (top_k_ > 0 && top_k_ < vocab_size_) {
    for (const TokenLogit& token : TopTokens(logits, top_k_)) candidates_.push_back({token, 0});
  } else {
    candidates_.reserve(logits.size());
    for (int32_t i = 0; i < vocab_size_; ++i) candidates_.push_back({{i, logits[i]}, 0});
  }
  const double max = *std::max_element(logits.begin(), logits.end());
  double total = 0;
  for (Weighted& candidate : candidates_) {
    candidate.weight = DeterministicExp((candidate.token.logit - max) / temperature_);
    total += candidate.weight;
  }
  // Top-p and min-p each keep the most likely tokens up to some rank, so the shorter rank decides, whichever
  // is first; min-p first leaves top-p less to order. Top-p's total is that of before.
  if (min_p_ > 0) {
    std::erase_if(candidates_, [this](const Weighted& candidate) { return candidate.weight < min_p_; });
  }
  if (top_p_ < 1) KeepTopP(total);
}

void Sampler::KeepTopP(double total_weight) {
  // A heap gives the most likely tokens one by one; the rest is never sorted.
  const auto less_likely = [](const Weighted& a, const Weighted& b) { return MoreLikely(b.token, a.token); };
  std::make_heap(candidates_.begin(), candidates_.end(), less_likely);
  in_nucleus_.clear();
  const double wanted = top_p_ * total_weight;
  double reached = 0;
  while (!candidates_.empty() && (in_nucleus_.empty() || reached < wanted)) {
    std::pop_heap(candidates_.begin(), candidates_.end(), less_likely);
    reached += candidates_.back().weight;
    in_nucleus_.push_back(candidates_.back());
    candidates_.pop_back();
  }
  std::swap(candidates_, in_nucleus_);
}

}  // namespace kvblend::generate
