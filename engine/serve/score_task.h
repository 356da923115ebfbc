// Teacher-forced scoring of one continuation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/engine.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/task.h"
#include "kernels/sampling.h"

namespace kvblend {

class ScoreTask final : public Task {
 public:
  /// The request must have been validated; `continuation` are its tokens. `runtime` must outlive the task.
  ScoreTask(ScoreRequest request, prompt::PromptLayout layout, std::vector<int32_t> continuation,
            const ModelRuntime& runtime, std::shared_ptr<ScoreObserver> observer);

  const prompt::PromptLayout& layout() const { return layout_; }

  bool Advance(PromptRunner& runner) override;
  double predicted_seconds_left() const override;
  int32_t max_working_tokens() const override;
  void Abandon(const absl::Status& status) override {
    DropPrefetch();
    LeaveQueue();
    TraceWhole();
    observer_->OnDone(status);
  }
  std::vector<blend::MissingEntry> TakeMissing() override { return std::move(missing_); }

 private:
  absl::Status Begin(PromptRunner& runner);
  /// The prompt is in pages: scores the first token.
  absl::Status EndPrefill(PromptRunner& runner);
  /// Scores the next few.
  absl::Status ScoreNext(PromptRunner& runner);
  bool is_done() const { return prefill_ == nullptr && next_ + 1 >= continuation_.size(); }
  absl::StatusOr<ScoredToken> ScoreToken(int32_t token_id, absl::Span<const float> logits) const;
  absl::StatusOr<ScoredToken> Describe(int32_t token_id, const kernels::SampledToken& sampled) const;

  const ScoreRequest request_;
  const prompt::PromptLayout layout_;
  const std::vector<int32_t> continuation_;
  const ModelRuntime& runtime_;
  const std::shared_ptr<ScoreObserver> observer_;
  std::unique_ptr<PromptPrefill> prefill_;  // while it is in progress
  PrefilledPrompt prompt_;
  std::optional<KeptSequence> kept_;  // what the prompt went on from
  size_t next_ = 0;                   // of the continuation, to be appended
  double queue_seconds_ = 0;
  std::vector<blend::MissingEntry> missing_;
};

}  // namespace kvblend
