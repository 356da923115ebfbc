// Prefill over reused KV: loads what the plan found, recomputes what the policy chooses, computes the rest.
//
// Passes (docs/algorithm.md has the reasoning and costs):
//   no measurement   one pass: per layer, load stored KV, overwrite the active tokens' KV with fresh, attend
//   question's       a query pass runs the computed tokens over the loaded KV and sums, in layers that vote,
//   attention        the question's attention per token; then one pass over the chosen tokens and the
//                    computed ones, which loads what the query pass had no use for
//   KV deviation     all inexact tokens run up to the check layer, where the tokens with the largest
//                    deviation between fresh and stored KV stay active (CacheBlend, EuroSys 2025, 4.3)
//
// Active tokens are gathered rows, each masked by its own position.
//
// A prefill is advanced step by step, so that any number of them can be in progress on one thread; each needs
// pages and scratch of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/blend/acquire_layer.h"
#include "engine/blend/costs/loading_controller.h"
#include "engine/blend/costs/work_times.h"
#include "engine/blend/kv_loader.h"
#include "engine/blend/pass_context.h"
#include "engine/blend/reuse_plan.h"
#include "engine/blend/row_pass.h"
#include "engine/blend/selection_policy.h"
#include "kernels/backend.h"

namespace kvblend::blend {

struct PrefillResult {
  Policy policy = Policy::kQuery;   // kAll when selecting would have cost more than computing everything
  std::vector<int32_t> recomputed;  // candidate positions that were recomputed, ascending
  // Per candidate, in their order, the score that the policy chose by; only with PassContext::keep_scores,
  // and where scores were measured.
  std::vector<float> scores;
  double load_seconds = 0;
  double stall_seconds = 0;      // the part of load_seconds spent waiting for layers to arrive
  double select_seconds = 0;     // query pass or deviation, and the choice; loading excluded
  double compute_seconds = 0;    // the rest
  int64_t skipped_kv_bytes = 0;  // stored KV of layers with windows that no row sees: not loaded
  PrefillMeasurements measurements;
  std::vector<float> logits;  // of the last prompt token [vocab_size]
};

/// The prefill of one prompt. Used by one thread at a time, not necessarily the same one.
class BlendedPrefill {
 public:
  /// Does no work yet. What context and policy refer to must outlive the prefill.
  /// REQUIRES: the sequence has pages for plan.prompt_tokens; the last prompt position is in plan.computed.
  static absl::StatusOr<std::unique_ptr<BlendedPrefill>> Create(const PassContext& context,
                                                                const SelectionPolicy& policy);
  /// Waits for the device, which may still be reading the KV of the plan's entries.
  ~BlendedPrefill();

  /// Does a unit of work: a part of a layer, or waits for stored KV for a moment. Returns whether the prefill
  /// is done; then the pages hold the KV of the whole prompt, and result() is complete. After an error
  /// nothing but destruction is allowed.
  absl::StatusOr<bool> Step(KeepGoing keep_going);

  /// Whether the last Step only waited for stored KV, for a moment. Other prompts may have their turn
  /// meanwhile.
  bool is_waiting() const { return pass_ != nullptr && pass_->is_waiting(); }

  /// REQUIRES: Step has returned true.
  PrefillResult& result() { return result_; }

 private:
  enum class Stage : uint8_t { kMeasure, kBlend, kLogits };

  BlendedPrefill(const PassContext& context, const SelectionPolicy& policy);

  absl::Status Begin();
  absl::Status BeginQueryPass(int32_t num_layers);
  absl::Status BeginDeviation(const Requirement& requirement);
  /// The query pass is over: chooses, and begins the pass over what was chosen.
  absl::Status EndQueryPass();
  /// One pass over the computed tokens and the recomputed ones.
  absl::Status Blend();
  absl::Status Finish();
  /// Puts what the clock says into the result. REQUIRES: the stream has been synchronised.
  absl::Status TakeTimes();
  // Both compute a score for every candidate into scores_, from which Choose takes it.
  absl::Status ScoreAttention();
  absl::Status ScoreDeviation(const Requirement& requirement, const RowPass& pass, KeepGoing keep_going);
  /// The positions that the policy chooses. Only the indices of the chosen candidates leave the backend's
  /// memory.
  absl::StatusOr<std::vector<int32_t>> Choose();

  const PassContext context_;
  const SelectionPolicy& policy_;
  WorkTimes times_;
  const WorkTimes::Account place_ = times_.Open(), stall_ = times_.Open(), select_ = times_.Open(),
                           head_ = times_.Open(), other_ = times_.Open();
  std::vector<RowPass::Charges> passes_;  // of the passes that are over
  std::unique_ptr<KvLoader> loader_;
  Stage stage_ = Stage::kBlend;
  std::unique_ptr<RowPass> pass_;
  std::unique_ptr<kernels::BatchPlan> question_;  // its rows; during the query pass
  kernels::MatrixView mass_, lengths_;            // f32 [layers that vote, prompt_tokens]
  kernels::MatrixView scores_;                    // f32 [1, candidates]
  int64_t pass_begin_ = 0;                        // of pass_, by the trace's clock
  PrefillResult result_;
};

/// Which of the layers before `num_layers` vote on what to recompute, ascending. The first eighth of the
/// model's layers has no vote if others have one: what the question looks at shows later
/// (docs/quality.md, "How tokens are scored"). Where some layers see the whole prompt, layers with shorter
/// windows have none either: they see only the last chunks, and would choose these whatever the question is.
std::vector<int32_t> VotingLayers(Windows windows, int32_t num_layers, int32_t prompt_tokens);

/// Sorted union of two ascending lists without common elements.
std::vector<int32_t> MergePositions(absl::Span<const int32_t> a, absl::Span<const int32_t> b);

}  // namespace kvblend::blend
