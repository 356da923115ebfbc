#include "engine/serve/generate_task.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/characters.h"
#include "base/status_macros.h"
#include "engine/api/computed_tokens.h"

namespace kvblend {
GenerateTask::GenerateTask(GenerateRequest request, prompt::PromptLayout layout, const ModelRuntime& runtime,
                           std::shared_ptr<GenerateObserver> observer)
    : Task(request.caller),
      request_(std::move(request)),
      layout_(std::move(layout)),
      runtime_(runtime),
      observer_(std::move(observer)),
      decoder_(*runtime_.tokenizer),
      stop_(request_.sampling.stop) {
  result_.prompt_tokens = static_cast<int32_t>(layout_.token_ids.size());
  if (request_.sampling.attribution) {
    std::copy_if(layout_.spans.begin(), layout_.spans.end(), std::back_inserter(attributed_chunks_),
                 [](const prompt::Span& span) { return span.kind == PromptPart::kChunk; });
  }
}

bool GenerateTask::Advance(PromptRunner& runner) {
  const auto fail = [this](const absl::Status& status) {
    Fail(status);
    return false;
  };
  if (result_.completion_tokens == 0) {
    if (prefill_ == nullptr) {
      const absl::Status begun = Begin(runner);
      return begun.ok() ? true : fail(begun);
    }
    const absl::StatusOr<bool> done = prefill_->Step([this] { return cancellation().Check(); });
    if (!done.ok()) return fail(done.status());
    if (!*done) return true;
    if (absl::Status status = EndPrefill(); !status.ok()) return fail(status);
    if (finish_.has_value()) {
      Finish();
      return false;
    }
  }
  if (!attributed_chunks_.empty()) {  // the first token did not wait for this
    if (absl::Status status = cancellation().Check(); !status.ok()) return fail(status);
    const absl::StatusOr<bool> ready = runner.PrepareAttention(caller().trace.get());
    if (!ready.ok()) return fail(ready.status());
    if (!*ready) return true;
  }
  decoding_ = true;
  if (sampler_->can_look_ahead()) {
    lookup_.emplace(layout_.token_ids);
    lookup_->Append(next_token_);
  }
  return false;
}

absl::Status GenerateTask::Begin(PromptRunner& runner) {
  queue_seconds_ = LeaveQueue();
  KVBLEND_ASSIGN_OR_RETURN(sampler_,
                           generate::Sampler::Create(request_.sampling, runtime_.config.vocab_size));
  result_.seed = sampler_->seed();
  KVBLEND_RETURN_IF_ERROR(cancellation().Check());
  runner_ = &runner;
  KVBLEND_ASSIGN_OR_RETURN(prefill_, runner.Begin(layout_, request_.blend, caller().tenant_namespace,
                                                  PagesUse(), caller().trace.get()));
  DropPrefetch();
  return absl::OkStatus();
}

absl::Status GenerateTask::EndPrefill() {
  prompt_ = prefill_->TakePrompt();
  kept_ = prefill_->TakeKept();
  record_ = prefill_->record();
  prefill_.reset();
  if (request_.blend.store_misses) missing_ = std::move(prompt_.missing);
  // Without the format's tokens behind the question: among them is the one that ends an answer.
  const int32_t end = prompt::EndOfQuestionText(layout_, *runtime_.tokenizer);
  for (int32_t position = layout_.spans.back().begin; position < end; ++position) {
    sampler_->AcceptOfPrompt(layout_.token_ids[position]);
  }
  KVBLEND_RETURN_IF_ERROR(cancellation().Check());
  const TracedUnit traced(caller().trace.get(), "first token");
  return Accept(sampler_->Sample(std::exchange(prompt_.logits, {})));
}

void GenerateTask::Pause() {
  prefill_.reset();
  if (kept_.has_value() && prompt_.pages != nullptr) {
    runner_->KeepAgain(std::move(prompt_), *std::exchange(kept_, std::nullopt));
  }
  prompt_.DropPages();
}

absl::StatusOr<bool> GenerateTask::Resume() {
  const auto keep_going = [this] { return cancellation().Check(); };
  if (prompt_.pages == nullptr && prefill_ == nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(prefill_, runner_->Begin(layout_, request_.blend, caller().tenant_namespace,
                                                      PagesUse(), caller().trace.get(), &record_));
    return false;
  }
  if (prefill_ != nullptr) {
    KVBLEND_ASSIGN_OR_RETURN(const bool done, prefill_->Step(keep_going));
    if (!done) return false;
    prompt_ = prefill_->TakePrompt();
    prompt_.logits.clear();
    kept_ = prefill_->TakeKept();
    prefill_.reset();
  }
  // The answer's last token is run only when the next one is to be chosen.
  const auto said = absl::MakeConstSpan(answer_)
                        .first(answer_.size() - 1)
                        .subspan(static_cast<size_t>(prompt_.num_tokens - result_.prompt_tokens));
  if (!said.empty()) KVBLEND_RETURN_IF_ERROR(runner_->Repeat(prompt_, said));
  return prompt_.num_tokens == num_tokens();
}

double GenerateTask::predicted_seconds_left() const {
  return prefill_ == nullptr ? 0 : prefill_->predicted_seconds_left();
}

int32_t GenerateTask::max_decoding_tokens() const {
  if (request_.sampling.max_tokens <= 1) return 0;  // the prefill gives the first
  const int64_t tokens = int64_t{result_.prompt_tokens} + request_.sampling.max_tokens;
  return static_cast<int32_t>(std::min<int64_t>(tokens, runtime_.max_context_tokens));
}

generate::PromptLookup::Guess GenerateTask::Guess(int32_t max_tokens) {
  if (!lookup_.has_value()) return {};
  // The last token of an answer is never run, and the context has an end.
  const int32_t left = std::min(request_.sampling.max_tokens - result_.completion_tokens,
                                runtime_.max_context_tokens - prompt_.num_tokens) -
                       1;
  return lookup_->Next(std::min(max_tokens, left));
}

bool GenerateTask::Continue(const kernels::SampledToken& sampled) {
  sampler_->Next();  // goes past what the token was sampled with
  if (absl::Status status = Accept(sampler_->Describe(sampled)); !status.ok()) {
    Fail(status);
    return false;
  }
  if (!finish_.has_value()) return true;
  Finish();
  return false;
}

absl::Status GenerateTask::Accept(const absl::StatusOr<generate::Sampled>& sampled) {
  KVBLEND_RETURN_IF_ERROR(sampled.status());
  if (result_.completion_tokens == 0) {
    result_.time_to_first_token_seconds = SecondsSinceSubmission();
    TraceUntilNow("prompt");
    runner_->FinishReport(queue_seconds_, result_.time_to_first_token_seconds, prompt_.report);
    is_reported_ = true;
    observer_->OnPrompt(prompt_.report);
  }
  if (!request_.sampling.ignore_eos && runtime_.tokenizer->IsEndOfGeneration(sampled->token_id)) {
    // The end-of-text token is neither delivered nor counted.
    finish_ = FinishReason::kEndOfText;
    return absl::OkStatus();
  }
  sampler_->Accept(sampled->token_id);
  Deliver(*sampled);
  next_token_ = sampled->token_id;
  answer_.push_back(next_token_);
  if (lookup_.has_value()) lookup_->Append(next_token_);
  return absl::OkStatus();
}

void GenerateTask::Deliver(const generate::Sampled& sampled) {
  ++result_.completion_tokens;
  TextDelta delta;
  delta.token_ids.push_back(sampled.token_id);
  const std::string text = decoder_.Append(sampled.token_id);
  // A character that earlier tokens began and this one does not go on with is replaced before it.
  const size_t earlier_bytes = decoder_.earlier_bytes();
  delta.begin_character =
      decoded_characters_ + NumCharacters(std::string_view(text).substr(0, earlier_bytes));
  decoded_characters_ += NumCharacters(text);
  if (request_.sampling.top_logprobs >= 0) AddLogprobs(sampled, delta);
  if (!attributed_chunks().empty()) {
    NoteReplaced(earlier_bytes);
    NotePlace(text.size() - earlier_bytes);
  }
  delta.text = stop_.Push(text);
  said_bytes_ += static_cast<int64_t>(delta.text.size());
  if (stop_.matched()) {
    NoteStop();
  } else if (result_.completion_tokens >= request_.sampling.max_tokens) {
    finish_ = FinishReason::kMaxTokens;
  } else if (prompt_.num_tokens + 1 >= runtime_.max_context_tokens) {  // this token has no KV yet
    finish_ = FinishReason::kContextFull;
  }
  observer_->OnText(delta);
}

void GenerateTask::NoteStop() {
  finish_ = FinishReason::kStopString;
  result_.stop_string = stop_.matched_string();
}

void GenerateTask::NotePlace(size_t bytes) {
  const int64_t begin = decoded_bytes_;
  decoded_bytes_ += static_cast<int64_t>(bytes);
  result_.attributions.push_back({.begin_byte = begin, .end_byte = decoded_bytes_});
}

void GenerateTask::NoteReplaced(size_t bytes) {
  if (bytes == 0 || result_.attributions.empty()) return;
  decoded_bytes_ += static_cast<int64_t>(bytes);
  result_.attributions.back().end_byte = decoded_bytes_;
}

void GenerateTask::Finish() {
  decoding_ = false;
  TextDelta rest;
  const std::string replaced = decoder_.Flush();
  if (!attributed_chunks().empty()) NoteReplaced(replaced.size());
  rest.text = stop_.Push(replaced);
  if (stop_.matched()) NoteStop();  // the replacement of an unfinished character may match
  rest.text += stop_.Flush();
  if (!rest.text.empty()) observer_->OnText(rest);
  said_bytes_ += static_cast<int64_t>(rest.text.size());
  for (AttributedToken& token : result_.attributions) {  // a stop string is no part of the answer
    token.begin_byte = std::min(token.begin_byte, said_bytes_);
    token.end_byte = std::min(token.end_byte, said_bytes_);
  }
  result_.finish_reason = *finish_;
  Keep();
  result_.total_seconds = SecondsSinceSubmission();
  TraceUntilNow("answer");
  TraceWhole();
  observer_->OnDone(absl::OkStatus(), result_);
}

void GenerateTask::Fail(const absl::Status& status) {
  decoding_ = false;
  DropPrefetch();
  const int64_t computed = UnreportedTokens();
  prefill_.reset();
  // A client that stops an answer may well go on from there.
  if (prompt_.pages != nullptr && (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status))) Keep();
  prompt_.DropPages();
  result_.total_seconds = SecondsSinceSubmission();
  if (runner_ != nullptr) TraceUntilNow(result_.completion_tokens == 0 ? "prompt" : "answer");
  TraceWhole();
  observer_->OnDone(WithComputedTokens(status, computed), result_);
}

int64_t GenerateTask::UnreportedTokens() const {
  if (is_reported_) return 0;  // what is computed once more is not the client's doing
  if (prefill_ != nullptr) return prefill_->computed_tokens();
  return int64_t{prompt_.report.recomputed_tokens} + prompt_.report.computed_tokens;
}

void GenerateTask::Keep() {
  runner_->Keep(std::move(prompt_), layout_, answer_, request_.blend, caller().tenant_namespace);
}

void GenerateTask::AddLogprobs(const generate::Sampled& sampled, TextDelta& delta) const {
  const auto describe = [this](int32_t token_id, double logprob) {
    return TokenLogprob{token_id, runtime_.tokenizer->TokenText(token_id), logprob,
                        std::string(runtime_.tokenizer->TokenBytes(token_id))};
  };
  delta.logprobs.push_back(describe(sampled.token_id, sampled.logprob));
  std::vector<TokenLogprob>& top = delta.top_logprobs.emplace_back();
  for (const generate::IdLogprob& other : sampled.top) top.push_back(describe(other.token_id, other.logprob));
}

}  // namespace kvblend
