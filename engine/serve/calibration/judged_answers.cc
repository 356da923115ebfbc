#include "engine/serve/calibration/judged_answers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "engine/generate/log_softmax.h"

namespace kvblend {
absl::StatusOr<std::vector<double>> JudgedAnswers::Divergences(
    const prompt::PromptLayout& layout,
    absl::Span<const std::shared_ptr<const kv::LoadedCorrection>> corrections) {
  KVBLEND_ASSIGN_OR_RETURN(const Continuation full, FullPrefill(layout));
  for (const prompt::Span& span : layout.spans) {
    if (span.kind != prompt::SpanKind::kChunk) continue;
    const bool isolated = anchoring_ == Anchoring::kIsolated;
    const absl::Span<const int32_t> tokens =
        absl::MakeConstSpan(layout.token_ids).subspan(span.begin, span.size());
    KVBLEND_RETURN_IF_ERROR(runner_
                                .EnsureStored("", isolated ? absl::Span<const int32_t>() : layout.anchor_ids,
                                              tokens, {}, [] { return absl::OkStatus(); })
                                .status());
  }
  BlendOptions blend = {.anchoring = anchoring_, .policy = Policy::kNone};
  blend.correction = false;
  KVBLEND_ASSIGN_OR_RETURN(const Continuation plain, Continue(layout, blend, full.tokens));
  std::vector<double> divergences = {MeanKl(full, plain)};
  blend.correction = true;
  for (const auto& correction : corrections) {
    runtime_.correction = correction;
    KVBLEND_ASSIGN_OR_RETURN(const Continuation corrected, Continue(layout, blend, full.tokens));
    divergences.push_back(MeanKl(full, corrected));
  }
  return divergences;
}

absl::StatusOr<std::vector<int32_t>> JudgedAnswers::Answer(const prompt::PromptLayout& layout) {
  KVBLEND_ASSIGN_OR_RETURN(Continuation full, FullPrefill(layout));
  return std::move(full.tokens);
}

absl::StatusOr<JudgedAnswers::Continuation> JudgedAnswers::FullPrefill(const prompt::PromptLayout& layout) {
  BlendOptions blend;
  blend.reuse = Reuse::kNothing;
  blend.policy = Policy::kAll;
  return Continue(layout, blend, {});
}

double JudgedAnswers::MeanKl(const Continuation& full, const Continuation& other) {
  double sum = 0;
  for (size_t i = 0; i < full.distributions.size(); ++i) {
    const std::vector<float>&p = full.distributions[i], &q = other.distributions[i];
    for (size_t t = 0; t < p.size(); ++t) sum += std::exp(double{p[t]}) * (double{p[t]} - double{q[t]});
  }
  return sum / static_cast<double>(full.distributions.size());
}

absl::StatusOr<JudgedAnswers::Continuation> JudgedAnswers::Continue(const prompt::PromptLayout& layout,
                                                                    const BlendOptions& blend,
                                                                    absl::Span<const int32_t> forced) {
  KVBLEND_ASSIGN_OR_RETURN(PrefilledPrompt prompt,
                           runner_.Prefill(layout, blend, "", [] { return absl::OkStatus(); }));
  Continuation continuation;
  std::vector<float> logits = std::move(prompt.logits);
  for (int32_t i = 0; i < kTokens; ++i) {
    KVBLEND_ASSIGN_OR_RETURN(continuation.distributions.emplace_back(), generate::LogSoftmax(logits));
    const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    const int32_t token = forced.empty() ? static_cast<int32_t>(likeliest) : forced[i];
    continuation.tokens.push_back(token);
    if (i + 1 == kTokens) break;
    KVBLEND_ASSIGN_OR_RETURN(logits, runner_.Extend(prompt, {&token, 1}, [] { return absl::OkStatus(); }));
  }
  return continuation;
}

}  // namespace kvblend
