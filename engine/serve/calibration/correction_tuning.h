// Fits a correction to what attention makes of it, prompt after prompt (engine/kv/tuning/). Each layer is
// held to full prefill's own queries, so that layers do not depend on each other and no derivative goes
// through the rest of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/learned_correction.h"
#include "engine/kv/pair_moments.h"
#include "engine/kv/tuning/tuning_checkpoint.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/calibration/placed_prompt.h"
#include "kernels/host/batch_plan.h"

namespace kvblend {

/// Not thread-safe. Runtime and placed prompt must outlive it.
class CorrectionTuning {
 public:
  /// `pairs`: per layer, what `start` was fitted on. kResourceExhausted: no memory for rotations.
  static absl::StatusOr<CorrectionTuning> Create(ModelRuntime& runtime, const kv::LearnedCorrection& start,
                                                 absl::Span<const kv::PairMoments> pairs,
                                                 int32_t num_threads);

  /// A prompt and what full prefill answers.
  struct Example {
    const prompt::PromptLayout& layout;
    absl::Span<const int32_t> answer;  // not empty
  };
  /// One step of all layers on one example. What their attention misses before it, mean over the layers: 0 is
  /// nothing.
  absl::StatusOr<double> Step(const Example& example, PlacedPrompt& placed, double rate);

  kv::LearnedCorrection Mean() const;
  kv::LayerTuners& tuners() { return tuners_; }

 private:
  CorrectionTuning(ModelRuntime& runtime, kv::LearnedCorrection start, int32_t num_threads)
      : runtime_(runtime), start_(std::move(start)), num_threads_(num_threads) {}
  absl::Status StepLayer(const PlacedPrompt::Layer& layer, absl::Span<const PlacedPrompt::Chunk> chunks,
                         absl::Span<const float> weights, double rate, double& missed);

  ModelRuntime& runtime_;
  const kv::LearnedCorrection start_;
  const int32_t num_threads_;
  std::vector<std::optional<kv::LayerTuner>> tuners_;               // none: the layer stays as it is stored
  std::vector<std::unique_ptr<kernels::HostRopeTable>> rotations_;  // as the model's
};

}  // namespace kvblend
