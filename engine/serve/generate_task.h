// One Generate request: its prefill, and its part in the steps of a DecodeBatch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/engine.h"
#include "engine/generate/prompt_lookup.h"
#include "engine/generate/sampler.h"
#include "engine/generate/stop_matcher.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/decoding_sequence.h"
#include "engine/serve/task.h"
#include "engine/text/stream_decoder.h"

namespace kvblend {

class GenerateTask final : public Task, public DecodingSequence {
 public:
  /// The request must have been validated. `runtime` must outlive the task.
  GenerateTask(GenerateRequest request, prompt::PromptLayout layout, const ModelRuntime& runtime,
               std::shared_ptr<GenerateObserver> observer);

  const prompt::PromptLayout& layout() const { return layout_; }

  // Task
  bool Advance(PromptRunner& runner) override;
  void Abandon(const absl::Status& status) override {
    LeaveQueue();
    Fail(status);
  }
  double predicted_seconds_left() const override;
  int32_t max_decoding_tokens() const override;
  int32_t max_working_tokens() const override { return result_.prompt_tokens; }
  int64_t PagesToShare(PromptRunner& runner) const override {
    return runner.PagesToShare(layout_, request_.blend, caller().tenant_namespace);
  }
  DecodingSequence* decoding() override { return decoding_ ? this : nullptr; }
  std::vector<blend::MissingEntry> TakeMissing() override { return std::move(missing_); }

  // DecodingSequence
  PrefilledPrompt& prompt() override { return prompt_; }
  int64_t pages_to_share() const override {
    return runner_->PagesToShare(layout_, request_.blend, caller().tenant_namespace, &record_);
  }
  int32_t num_tokens() const override {
    return result_.prompt_tokens + static_cast<int32_t>(answer_.size()) - 1;
  }
  void Pause() override;
  absl::StatusOr<bool> Resume() override;
  int32_t next_token() const override { return next_token_; }
  absl::Status KeepGoing() override { return cancellation().Check(); }
  generate::PromptLookup::Guess Guess(int32_t max_tokens) override;
  kernels::SamplingSpec Sampling(int32_t index) override { return sampler_->Peek(index); }
  absl::Span<const prompt::Span> attributed_chunks() const override {
    if (result_.completion_tokens > kMaxAttributedTokens) return {};
    return attributed_chunks_;
  }
  void Attribute(std::vector<ChunkAttention> chunks) override {
    // A guess that came true may lie behind the last token that is attributed.
    const auto delivered = static_cast<size_t>(result_.completion_tokens);
    if (delivered == result_.attributions.size()) result_.attributions.back().chunks = std::move(chunks);
  }
  bool Continue(const kernels::SampledToken& sampled) override;
  void Fail(const absl::Status& status) override;

 private:
  kv::PageUse PagesUse() const {
    return max_decoding_tokens() > 0 ? kv::PageUse::kDecoding : kv::PageUse::kWorking;
  }
  absl::Status Begin(PromptRunner& runner);
  /// The prompt is in pages: delivers the first token.
  absl::Status EndPrefill();
  /// Delivers a token; finish_ tells whether it was the last.
  absl::Status Accept(const absl::StatusOr<generate::Sampled>& sampled);
  /// Delivers a token's text; sets finish_ when it ends the answer.
  void Deliver(const generate::Sampled& sampled);
  void Finish();
  /// Notes that a stop string has come, and which.
  void NoteStop();
  /// Notes where the text of a token is: behind that of the earlier ones.
  void NotePlace(size_t bytes);
  /// Notes that the last token has these bytes too, which stand for a character that never became whole.
  void NoteReplaced(size_t bytes);
  void AddLogprobs(const generate::Sampled& sampled, TextDelta& delta) const;
  /// Leaves the sequence to the conversation's next turn.
  void Keep();
  /// How many tokens of the prompt were computed that no report has told of.
  int64_t UnreportedTokens() const;

  const GenerateRequest request_;
  const prompt::PromptLayout layout_;
  const ModelRuntime& runtime_;
  const std::shared_ptr<GenerateObserver> observer_;
  double queue_seconds_ = 0;
  GenerateResult result_;
  std::vector<blend::MissingEntry> missing_;

  PromptRunner* runner_ = nullptr;          // once it has begun
  std::unique_ptr<PromptPrefill> prefill_;  // while it is in progress
  PrefilledPrompt prompt_;
  std::optional<KeptSequence> kept_;  // what the prompt went on from
  PrefillRecord record_;              // how the prompt was prefilled
  std::vector<int32_t> answer_;       // its tokens so far
  std::optional<generate::Sampler> sampler_;
  // Prompt and answer, once it is decoded; unset: nothing can be guessed.
  std::optional<generate::PromptLookup> lookup_;
  std::vector<prompt::Span> attributed_chunks_;  // all chunks, if their attention was asked for
  int64_t decoded_characters_ = 0;               // of the answer's text
  int64_t decoded_bytes_ = 0;                    // of the answer's text
  int64_t said_bytes_ = 0;                       // those of them that were delivered
  text::StreamDecoder decoder_;
  generate::StopMatcher stop_;
  int32_t next_token_ = -1;
  std::optional<FinishReason> finish_;
  bool is_reported_ = false;  // the prompt
  bool decoding_ = false;
};

}  // namespace kvblend
