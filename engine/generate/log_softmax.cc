#include "engine/generate/log_softmax.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "kernels/host/logit_scan.h"
#include "kernels/host/sample_row.h"

namespace kvblend::generate {

absl::Status InvalidLogit(int32_t token_id, float logit) {
  return absl::InternalError(
      absl::StrCat("logit of token ", token_id, " is ", logit, "; all must be finite"));
}

absl::StatusOr<double> LogSumExp(absl::Span<const float> logits) {
  if (logits.empty()) return absl::InternalError("the row of logits is empty");
  const int32_t invalid = kernels::FindInvalid(logits);
  if (invalid >= 0) return InvalidLogit(invalid, logits[invalid]);
  const float max = *std::max_element(logits.begin(), logits.end());
  const kernels::SampledToken sums{.max_logit = max, .weight_sum = kernels::SumOfWeights(logits, max)};
  return sums.LogSumExp(static_cast<int64_t>(logits.size()));
}

absl::StatusOr<std::vector<float>> LogSoftmax(absl::Span<const float> logits) {
  absl::StatusOr<double> log_sum = LogSumExp(logits);
  if (!log_sum.ok()) return log_sum.status();
  std::vector<float> logprobs(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) logprobs[i] = static_cast<float>(logits[i] - *log_sum);
  return logprobs;
}

}  // namespace kvblend::generate
