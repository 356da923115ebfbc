// What a correction is worth to answers.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/kv/learned_correction.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/prompt_runner.h"

namespace kvblend {

/// Not thread-safe. Runtime and runner must outlive it.
class JudgedAnswers {
 public:
  static constexpr int32_t kTokens = 16;  // of each answer

  JudgedAnswers(ModelRuntime& runtime, PromptRunner& runner, Anchoring anchoring)
      : runtime_(runtime), anchoring_(anchoring), runner_(runner) {}

  /// Mean KL(full || reuse) in nats over full prefill's greedy tokens, nothing recomputed: without a
  /// correction, and then with each of these. The runtime's correction is the last one then.
  absl::StatusOr<std::vector<double>> Divergences(
      const prompt::PromptLayout& layout,
      absl::Span<const std::shared_ptr<const kv::LoadedCorrection>> corrections);

  /// What full prefill answers.
  absl::StatusOr<std::vector<int32_t>> Answer(const prompt::PromptLayout& layout);

 private:
  /// Tokens, and the log-probabilities that each was drawn from.
  struct Continuation {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> distributions;
  };

  absl::StatusOr<Continuation> FullPrefill(const prompt::PromptLayout& layout);
  static double MeanKl(const Continuation& full, const Continuation& other);
  /// Greedily, or along `forced`.
  absl::StatusOr<Continuation> Continue(const prompt::PromptLayout& layout, const BlendOptions& blend,
                                        absl::Span<const int32_t> forced);

  ModelRuntime& runtime_;
  const Anchoring anchoring_;
  PromptRunner& runner_;
};

}  // namespace kvblend
