#include "engine/generate/log_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "engine/generate/deterministic_exp.h"

namespace kvblend::generate {

absl::Status CheckFinite(absl::Span<const float> logits) {
  if (logits.empty()) return absl::InternalError("the row of logits is empty");
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) {
      return absl::InternalError(
          absl::StrCat("logit of token ", i, " is ", logits[i], "; all must be finite"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<double> LogSumExp(absl::Span<const float> logits) {
  if (absl::Status finite = CheckFinite(logits); !finite.ok()) return finite;
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += DeterministicExp(logit - max);
  return max + std::log(sum);
}

absl::StatusOr<std::vector<float>> LogSoftmax(absl::Span<const float> logits) {
  absl::StatusOr<double> log_sum = LogSumExp(logits);
  if (!log_sum.ok()) return log_sum.status();
  std::vector<float> logprobs(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) logprobs[i] = static_cast<float>(logits[i] - *log_sum);
  return logprobs;
}

std::vector<TokenLogit> TopTokens(absl::Span<const float> logits, int32_t k) {
  const size_t count = std::min(static_cast<size_t>(k), logits.size());
  std::vector<TokenLogit> heap;  // its front is the least likely token kept so far
  if (count == 0) return heap;
  heap.reserve(count);
  for (size_t i = 0; i < logits.size(); ++i) {
    const TokenLogit candidate{static_cast<int32_t>(i), logits[i]};
    if (heap.size() == count) {
      if (!MoreLikely(candidate, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), MoreLikely);
      heap.back() = candidate;
    } else {
      heap.push_back(candidate);
    }
    std::push_heap(heap.begin(), heap.end(), MoreLikely);
  }
  std::sort_heap(heap.begin(), heap.end(), MoreLikely);
  return heap;
}

}  // namespace kvblend::generate
