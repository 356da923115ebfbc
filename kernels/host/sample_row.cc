#include "kernels/host/sample_row.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/host/logit_scan.h"

namespace kvblend::kernels {
namespace {

struct Candidate {
  int32_t id;
  float logit;
  uint64_t weight;  // of the whole: 2^WeightBits for the most likely token
};

bool MoreLikelyCandidate(const Candidate& a, const Candidate& b) {
  return MoreLikely(a.logit, a.id, b.logit, b.id);
}

/// The min(k, size) most likely tokens, most likely first; one pass with a heap of k.
std::vector<Candidate> TopTokens(absl::Span<const float> logits, int32_t k) {
  const size_t count = std::min(static_cast<size_t>(k), logits.size());
  std::vector<Candidate> heap;  // its front is the least likely token kept so far
  if (count == 0) return heap;
  heap.reserve(count);
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate candidate{static_cast<int32_t>(i), logits[i], 0};
    if (heap.size() == count) {
      if (!MoreLikelyCandidate(candidate, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), MoreLikelyCandidate);
      heap.back() = candidate;
    } else {
      heap.push_back(candidate);
    }
    std::push_heap(heap.begin(), heap.end(), MoreLikelyCandidate);
  }
  std::sort_heap(heap.begin(), heap.end(), MoreLikelyCandidate);
  return heap;
}

std::vector<float> Changed(absl::Span<const float> logits, const SamplingSpec& spec) {
  std::vector<float> changed(logits.begin(), logits.end());
  constexpr double kLargest = std::numeric_limits<float>::max();
  for (const LogitChange& change : spec.changes) {
    double logit = logits[change.token_id];
    if (change.repeated)
      logit = logit > 0 ? logit / spec.repetition_penalty : logit * spec.repetition_penalty;
    changed[change.token_id] =
        static_cast<float>(std::clamp(logit + double{change.added}, -kLargest, kLargest));
  }
  return changed;
}

uint64_t Sum(const std::vector<Candidate>& candidates) {
  uint64_t sum = 0;
  for (const Candidate& candidate : candidates) sum += candidate.weight;
  return sum;
}

/// The first candidates, most likely first, whose weights reach `wanted`; all where they do not.
std::vector<Candidate> Nucleus(std::vector<Candidate> candidates, uint64_t wanted) {
  // A heap gives the most likely tokens one by one; the rest is never sorted.
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return MoreLikelyCandidate(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  std::vector<Candidate> nucleus;
  uint64_t reached = 0;
  while (!candidates.empty() && reached < wanted) {
    std::pop_heap(candidates.begin(), candidates.end(), less_likely);
    reached += candidates.back().weight;
    nucleus.push_back(candidates.back());
    candidates.pop_back();
  }
  return nucleus;
}

int32_t Draw(absl::Span<const float> logits, const SamplingSpec& spec) {
  const auto vocab_size = static_cast<int32_t>(logits.size());
  const int bits = WeightBits(vocab_size);
  std::vector<Candidate> candidates;
  if (spec.top_k > 0 && spec.top_k < vocab_size) {
    candidates = TopTokens(logits, spec.top_k);
  } else {
    candidates.reserve(logits.size());
    for (int32_t i = 0; i < vocab_size; ++i) candidates.push_back({i, logits[i], 0});
  }
  const double max = logits[MostLikely(logits)];
  for (Candidate& candidate : candidates) {
    candidate.weight = WeightOf((candidate.logit - max) / spec.temperature, bits);
  }
  const uint64_t total = Sum(candidates);
  // Top-p and min-p each keep the most likely tokens up to some rank, so the shorter rank decides, whichever
  // is first; min-p first leaves top-p less to order. Top-p's total is the one before min-p.
  if (spec.min_p > 0) {
    const double least = spec.min_p * static_cast<double>(uint64_t{1} << bits);
    std::erase_if(candidates, [least](const Candidate& candidate) {
      return static_cast<double>(candidate.weight) < least;
    });
  }
  if (spec.top_p < 1) {
    const double wanted = std::ceil(spec.top_p * static_cast<double>(total));
    candidates = Nucleus(std::move(candidates), static_cast<uint64_t>(wanted));  // at least 1: top_p > 0
  }
  const uint64_t left = Sum(candidates);
  const uint64_t target = std::min(left - 1, static_cast<uint64_t>(spec.uniform * static_cast<double>(left)));
  uint64_t reached = 0;
  for (const Candidate& candidate : candidates) {
    reached += candidate.weight;
    if (reached > target) return candidate.id;
  }
  return candidates.back().id;  // not reached: the last sum is `left`
}

}  // namespace

uint64_t SumOfWeights(absl::Span<const float> logits, float max) {
  const int bits = WeightBits(static_cast<int64_t>(logits.size()));
  uint64_t sum = 0;
  for (const float logit : logits) sum += WeightOf(double{logit} - max, bits);
  return sum;
}

SampledToken SampleRow(absl::Span<const float> logits, const SamplingSpec& spec) {
  SampledToken sampled;
  sampled.invalid_token = FindInvalid(logits);
  if (sampled.invalid_token >= 0) {
    sampled.invalid_logit = logits[sampled.invalid_token];
    return sampled;
  }
  std::vector<float> changed;
  if (!spec.changes.empty()) changed = Changed(logits, spec);
  const absl::Span<const float> row = spec.changes.empty() ? logits : absl::MakeConstSpan(changed);
  sampled.token_id = spec.temperature == 0 ? MostLikely(row) : Draw(row, spec);
  sampled.logit = logits[sampled.token_id];
  if (spec.scored_token >= 0) sampled.scored_logit = logits[spec.scored_token];
  if (!spec.wants_logprobs()) return sampled;
  sampled.max_logit = logits[MostLikely(logits)];
  sampled.weight_sum = SumOfWeights(logits, sampled.max_logit);
  for (const Candidate& token : TopTokens(logits, spec.num_top)) {
    sampled.top_ids[sampled.num_top] = token.id;
    sampled.top_logits[sampled.num_top++] = token.logit;
  }
  return sampled;
}

}  // namespace kvblend::kernels
