#include "engine/serve/score_task.h"

#include <utility>

#include "base/status_macros.h"
#include "engine/api/computed_tokens.h"
#include "engine/generate/log_softmax.h"
#include "kernels/host/sample_row.h"

namespace kvblend {
namespace {

// Positions whose logits are computed and held at once: bounds memory at kStep * vocab_size floats.
constexpr size_t kStep = 64;

/// Asks for the most likely token, and for what the given one's log-probability follows from.
kernels::SamplingSpec SpecFor(int32_t token_id) { return {.num_top = 0, .scored_token = token_id}; }

}  // namespace

ScoreTask::ScoreTask(ScoreRequest request, prompt::PromptLayout layout, std::vector<int32_t> continuation,
                     const ModelRuntime& runtime, std::shared_ptr<ScoreObserver> observer)
    : Task(request.caller),
      request_(std::move(request)),
      layout_(std::move(layout)),
      continuation_(std::move(continuation)),
      runtime_(runtime),
      observer_(std::move(observer)) {}

int32_t ScoreTask::max_working_tokens() const {
  return static_cast<int32_t>(layout_.token_ids.size() + continuation_.size());
}

double ScoreTask::predicted_seconds_left() const {
  return prefill_ == nullptr ? 0 : prefill_->predicted_seconds_left();
}

bool ScoreTask::Advance(PromptRunner& runner) {
  const auto end = [&](const absl::Status& status) {
    DropPrefetch();
    const int64_t computed = prefill_ == nullptr ? 0 : prefill_->computed_tokens();
    prefill_.reset();
    if (kept_.has_value() && prompt_.pages != nullptr) {
      runner.KeepAgain(std::move(prompt_), *std::exchange(kept_, std::nullopt));
    }
    prompt_.DropPages();
    TraceUntilNow(next_ > 0 || is_done() ? "scores" : "prompt");
    TraceWhole();
    observer_->OnDone(status.ok() ? status : WithComputedTokens(status, computed));
    return false;
  };
  absl::Status status;
  if (prompt_.pages == nullptr && prefill_ == nullptr) {
    status = Begin(runner);
  } else if (prefill_ != nullptr) {
    const absl::StatusOr<bool> done = prefill_->Step([this] { return cancellation().Check(); });
    status = done.status();
    if (done.ok() && *done) status = EndPrefill(runner);
  } else {
    status = ScoreNext(runner);
  }
  return status.ok() && !is_done() ? true : end(status);
}

absl::Status ScoreTask::Begin(PromptRunner& runner) {
  queue_seconds_ = LeaveQueue();
  KVBLEND_ASSIGN_OR_RETURN(prefill_, runner.Begin(layout_, request_.blend, caller().tenant_namespace,
                                                  kv::PageUse::kWorking, caller().trace.get()));
  DropPrefetch();
  return absl::OkStatus();
}

absl::Status ScoreTask::EndPrefill(PromptRunner& runner) {
  prompt_ = prefill_->TakePrompt();
  kept_ = prefill_->TakeKept();
  prefill_.reset();
  if (request_.blend.store_misses) missing_ = std::move(prompt_.missing);
  runner.FinishReport(queue_seconds_, SecondsSinceSubmission(), prompt_.report);
  TraceUntilNow("prompt");
  observer_->OnPrompt(prompt_.report);
  KVBLEND_ASSIGN_OR_RETURN(const ScoredToken first, ScoreToken(continuation_[0], prompt_.logits));
  observer_->OnToken(first);
  return absl::OkStatus();
}

absl::Status ScoreTask::ScoreNext(PromptRunner& runner) {
  const TracedUnit traced(caller().trace.get(), "score");
  const auto keep_going = [this] { return cancellation().Check(); };
  // Token i is scored by the logits after token i - 1, so the last token itself is never run.
  const size_t vocab_size = runtime_.config.vocab_size, begin = next_;
  const absl::Span<const int32_t> step =
      absl::MakeConstSpan(continuation_).first(continuation_.size() - 1).subspan(begin, kStep);
  next_ += step.size();
  if (request_.return_distributions) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> logits, runner.Extend(prompt_, step, keep_going));
    for (size_t i = 0; i < step.size(); ++i) {
      KVBLEND_ASSIGN_OR_RETURN(const ScoredToken token,
                               ScoreToken(continuation_[begin + i + 1],
                                          absl::MakeConstSpan(logits).subspan(i * vocab_size, vocab_size)));
      observer_->OnToken(token);
    }
    return absl::OkStatus();
  }
  std::vector<kernels::SamplingSpec> specs(step.size());
  for (size_t i = 0; i < step.size(); ++i) specs[i] = SpecFor(continuation_[begin + i + 1]);
  KVBLEND_ASSIGN_OR_RETURN(const auto sampled, runner.ExtendAndSample(prompt_, step, specs, keep_going));
  for (size_t i = 0; i < step.size(); ++i) {
    KVBLEND_ASSIGN_OR_RETURN(const ScoredToken token, Describe(specs[i].scored_token, sampled[i]));
    observer_->OnToken(token);
  }
  return absl::OkStatus();
}

absl::StatusOr<ScoredToken> ScoreTask::ScoreToken(int32_t token_id, absl::Span<const float> logits) const {
  KVBLEND_ASSIGN_OR_RETURN(ScoredToken token,
                           Describe(token_id, kernels::SampleRow(logits, SpecFor(token_id))));
  if (request_.return_distributions) {
    KVBLEND_ASSIGN_OR_RETURN(token.distribution, generate::LogSoftmax(logits));
  }
  return token;
}

absl::StatusOr<ScoredToken> ScoreTask::Describe(int32_t token_id,
                                                const kernels::SampledToken& sampled) const {
  if (sampled.invalid_token >= 0) {
    return generate::InvalidLogit(sampled.invalid_token, sampled.invalid_logit);
  }
  const double log_sum = sampled.LogSumExp(runtime_.config.vocab_size);
  ScoredToken token;
  token.token_id = token_id;
  token.text = runtime_.tokenizer->TokenText(token_id);
  token.logprob = static_cast<float>(sampled.scored_logit - log_sum);
  token.top_token_id = sampled.token_id;
  token.top_logprob = static_cast<float>(sampled.logit - log_sum);
  return token;
}

}  // namespace kvblend
