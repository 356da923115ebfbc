// Prefill and decode loop of one Generate request.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/generate/sampler.h"
#include "engine/model_runtime.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/task.h"

namespace kvblend {

class GenerateTask final : public Task {
 public:
  /// The request must have been validated. `runtime` must outlive the task.
  GenerateTask(GenerateRequest request, prompt::PromptLayout layout, const ModelRuntime& runtime,
               std::shared_ptr<GenerateObserver> observer);

  const prompt::PromptLayout& layout() const { return layout_; }

  void Run(PromptRunner& runner) override;
  void Abandon(const absl::Status& status) override;
  std::vector<blend::MissingEntry> TakeMissing() override { return std::move(missing_); }

 private:
  absl::Status Generate(PromptRunner& runner);
  absl::Status Decode(PromptRunner& runner, generate::Sampler& sampler, PrefilledPrompt& prompt);
  void AddLogprobs(const generate::Sampled& sampled, TextDelta& delta) const;

  const GenerateRequest request_;
  const prompt::PromptLayout layout_;
  const ModelRuntime& runtime_;
  const std::shared_ptr<GenerateObserver> observer_;
  double queue_seconds_ = 0;
  GenerateResult result_;
  std::vector<blend::MissingEntry> missing_;
};

}  // namespace kvblend
