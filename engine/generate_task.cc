#include "engine/generate_task.h"

#include <optional>
#include <utility>

#include "engine/generate/stop_matcher.h"
#include "engine/status_macros.h"
#include "engine/text/stream_decoder.h"

namespace kvblend {

GenerateTask::GenerateTask(GenerateRequest request, prompt::PromptLayout layout, const ModelRuntime& runtime,
                           std::shared_ptr<GenerateObserver> observer)
    : Task(request.caller),
      request_(std::move(request)),
      layout_(std::move(layout)),
      runtime_(runtime),
      observer_(std::move(observer)) {
  result_.prompt_tokens = static_cast<int32_t>(layout_.token_ids.size());
}

void GenerateTask::Run(PromptRunner& runner) {
  queue_seconds_ = SecondsSinceSubmission();
  const absl::Status status = Generate(runner);
  DropPrefetch();
  result_.total_seconds = SecondsSinceSubmission();
  observer_->OnDone(status, result_);
}

void GenerateTask::Abandon(const absl::Status& status) {
  DropPrefetch();
  result_.total_seconds = SecondsSinceSubmission();
  observer_->OnDone(status, result_);
}

absl::Status GenerateTask::Generate(PromptRunner& runner) {
  KVBLEND_ASSIGN_OR_RETURN(generate::Sampler sampler,
                           generate::Sampler::Create(request_.sampling, runtime_.config.vocab_size));
  result_.seed = sampler.seed();
  KVBLEND_ASSIGN_OR_RETURN(PrefilledPrompt prompt,
                           runner.Prefill(layout_, request_.blend, caller().tenant_namespace,
                                          [this] { return cancellation().Check(); }));
  DropPrefetch();
  if (request_.blend.store_misses) missing_ = std::move(prompt.missing);
  const prompt::Span& question = layout_.spans.back();
  for (int32_t position = question.begin; position < question.end; ++position) {
    sampler.Accept(layout_.token_ids[position]);
  }
  return Decode(runner, sampler, prompt);
}

absl::Status GenerateTask::Decode(PromptRunner& runner, generate::Sampler& sampler, PrefilledPrompt& prompt) {
  text::StreamDecoder decoder(*runtime_.tokenizer);
  generate::StopMatcher stop(request_.sampling.stop);
  std::vector<float> logits = std::move(prompt.logits);
  std::optional<FinishReason> finish;
  while (!finish.has_value()) {
    KVBLEND_RETURN_IF_ERROR(cancellation().Check());
    KVBLEND_ASSIGN_OR_RETURN(const generate::Sampled sampled, sampler.Sample(logits));
    if (result_.completion_tokens == 0) {
      result_.time_to_first_token_seconds = SecondsSinceSubmission();
      prompt.report.queue_seconds = queue_seconds_;
      prompt.report.time_to_first_token_seconds = result_.time_to_first_token_seconds;
      observer_->OnPrompt(prompt.report);
    }
    if (!request_.sampling.ignore_eos && runtime_.tokenizer->IsEndOfGeneration(sampled.token_id)) {
      // The end-of-text token is neither delivered nor counted.
      finish = FinishReason::kEndOfText;
      break;
    }
    sampler.Accept(sampled.token_id);
    ++result_.completion_tokens;
    TextDelta delta;
    delta.token_ids.push_back(sampled.token_id);
    if (request_.sampling.top_logprobs >= 0) AddLogprobs(sampled, delta);
    delta.text = stop.Push(decoder.Append(sampled.token_id));
    if (stop.matched()) {
      finish = FinishReason::kStopString;
      result_.stop_string = stop.matched_string();
    } else if (result_.completion_tokens >= request_.sampling.max_tokens) {
      finish = FinishReason::kMaxTokens;
    } else if (prompt.num_tokens >= runtime_.max_context_tokens) {
      finish = FinishReason::kContextFull;
    }
    observer_->OnText(delta);
    if (!finish.has_value()) {
      KVBLEND_ASSIGN_OR_RETURN(
          logits, runner.Extend(prompt, {sampled.token_id}, [this] { return cancellation().Check(); }));
    }
  }
  TextDelta rest;
  rest.text = stop.Push(decoder.Flush());
  rest.text += stop.Flush();
  if (!rest.text.empty()) observer_->OnText(rest);
  result_.finish_reason = *finish;
  return absl::OkStatus();
}

void GenerateTask::AddLogprobs(const generate::Sampled& sampled, TextDelta& delta) const {
  const auto describe = [this](int32_t token_id, double logprob) {
    return TokenLogprob{token_id, runtime_.tokenizer->Decode({&token_id, 1}, /*skip_special=*/false),
                        logprob};
  };
  delta.logprobs.push_back(describe(sampled.token_id, sampled.logprob));
  std::vector<TokenLogprob>& top = delta.top_logprobs.emplace_back();
  for (const generate::IdLogprob& other : sampled.top) top.push_back(describe(other.token_id, other.logprob));
}

}  // namespace kvblend
