// Prefill over reused KV: loads what the plan found, recomputes what the policy chooses, computes the rest.
//
// Passes (docs/algorithm.md has the reasoning and costs):
//   no measurement   one pass: per layer, load stored KV, overwrite the active tokens' KV with fresh, attend
//   question's       a query pass runs the computed tokens over the loaded KV through the layers that vote,
//   attention        and sums the question's attention per token; then one pass over the chosen tokens and
//                    the computed ones, which loads the layers that did not vote
//   KV deviation     all inexact tokens run up to the check layer, where the tokens with the largest
//                    deviation between fresh and stored KV stay active (CacheBlend, EuroSys 2025, 4.3)
//
// Active tokens are gathered rows, each masked by its own position.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/blend/acquire_layer.h"
#include "engine/blend/fresh_rows.h"
#include "engine/blend/kv_loader.h"
#include "engine/blend/loading_controller.h"
#include "engine/blend/paged_sequence.h"
#include "engine/blend/reuse_plan.h"
#include "engine/blend/selection_policy.h"
#include "engine/model/transformer.h"
#include "engine/prompt/prompt_layout.h"
#include "kernels/backend.h"

namespace kvblend::blend {

struct PrefillResult {
  Policy policy = Policy::kQuery;   // kAll when selecting would have cost more than computing everything
  std::vector<int32_t> recomputed;  // candidate positions that were recomputed, ascending
  double load_seconds = 0;
  double stall_seconds = 0;    // the part of load_seconds spent waiting for layers to arrive
  double select_seconds = 0;   // query pass or deviation, and the choice; loading excluded
  double compute_seconds = 0;  // the rest
  PrefillMeasurements measurements;
  std::vector<float> logits;  // of the last prompt token [vocab_size]
};

/// Holds scratch; one request at a time. References must outlive it.
class BlendedPrefill {
 public:
  /// `pipeline_depth`: see KvLoader::Create.
  BlendedPrefill(const model::Transformer& transformer, kernels::Stream& stream, model::PassState& state,
                 int32_t pipeline_depth)
      : transformer_(transformer), stream_(stream), state_(state), pipeline_depth_(pipeline_depth) {}

  /// Afterwards the pages hold the KV of the whole prompt. `correction`: of stored KV that is reused inexactly; null:
  /// none. `capture` keeps rows of missing chunks; null: none are kept.
  /// REQUIRES: the sequence has pages for plan.prompt_tokens; the last prompt position is in plan.computed.
  absl::StatusOr<PrefillResult> Run(const prompt::PromptLayout& layout, const ReusePlan& plan,
                                    const SelectionPolicy& policy, const PagedSequence& sequence,
                                    const kv::LoadedCorrection* correction, FreshRowCapture* capture,
                                    KeepGoing keep_going);

 private:
  struct Pass;  // one request's inputs

  struct LayerRange {
    int32_t begin = 0;
    int32_t end = 0;
  };

  /// Layers before `first_load` have their stored KV in the pages already. `active`: the positions of `rows`.
  absl::Status RunLayers(const Pass& pass, absl::Span<const int32_t> active, const kernels::BatchPlan& rows,
                         LayerRange layers, KvLoader& loader, int32_t first_load, KvLoader::Which which);
  /// What learning wants of a layer's fresh KV. `active`: the positions of the rows.
  absl::Status KeepFreshRows(const Pass& pass, int32_t layer, absl::Span<const int32_t> active);
  /// The last layer from its KV on, for the last row alone: nobody reads what becomes of the others.
  absl::Status FinishLastRow(const Pass& pass, kernels::KvPagesView pages);
  absl::Status RunRows(const Pass& pass, absl::Span<const int32_t> active, KvLoader& loader,
                       int32_t first_load);
  // Both measure a score for every candidate and leave it in scores_, where Choose finds it.
  /// Loads the voting layers only.
  absl::Status MeasureQuestionAttention(const Pass& pass, int32_t voting_layers, KvLoader& loader);
  absl::Status MeasureDeviation(const Pass& pass, absl::Span<const int32_t> active,
                                const Requirement& requirement, KvLoader& loader);
  /// The policy's choice. Only the chosen candidates' numbers leave the backend's memory.
  absl::StatusOr<std::vector<int32_t>> Choose(const Pass& pass);
  absl::StatusOr<std::vector<int32_t>> RunSelectingByDeviation(const Pass& pass,
                                                               const Requirement& requirement,
                                                               KvLoader& loader, double& select_seconds);

  const model::Transformer& transformer_;
  kernels::Stream& stream_;
  model::PassState& state_;
  const int32_t pipeline_depth_;
  CorrectionOnLoad correction_;
  model::ScratchMatrix layer_mass_;
  model::ScratchMatrix scores_storage_;
  kernels::MatrixView scores_;   // f32 [1, candidates]
  model::ScratchMatrix chosen_;  // as many int32 as tokens are chosen
  model::ScratchMatrix logits_;
};

/// Sorted union of two ascending lists without common elements.
std::vector<int32_t> MergePositions(absl::Span<const int32_t> a, absl::Span<const int32_t> b);

}  // namespace kvblend::blend
