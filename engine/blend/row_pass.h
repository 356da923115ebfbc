// Computes some tokens of a prompt, the rows of the pass, layer by layer over the stored KV of the others:
// per layer, load stored KV, move it as the rows' fresh KV deviates from it, overwrite the rows' own, attend.
// A pass is divided into small units of work, so that it can be interrupted within a layer. The units are the
// same however a pass is interrupted, and so the result is the same to the last bit.
//
// Rows leave a pass where nothing depends on them any more: in the last layer all but the last row, and in
// layers with sliding windows those that no later layer looks back to (visibility.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/blend/costs/loading_controller.h"
#include "engine/blend/kv_loader.h"
#include "engine/blend/pass_context.h"
#include "engine/blend/visibility.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// One pass. Its rows are in the context's state. Context and loader must outlive it. Not thread-safe.
class RowPass {
 public:
  /// What to measure: in layers that vote, the attention that the last rows (the question's) pay to every
  /// position, and the lengths of the values there. The pass ends when the last layer that votes has been
  /// measured.
  struct Measure {
    const kernels::BatchPlan* question = nullptr;
    std::vector<int32_t> layers;  // that vote, ascending
    kernels::MatrixView mass;     // f32 [layers.size(), prompt_tokens]
    kernels::MatrixView lengths;  // the same
  };

  /// A choice of rows that go on behind a layer, made once the layer's fresh KV is there. Up to that layer
  /// only exact stored KV is loaded, since all other rows are active; from that layer on all of it is.
  struct Selection {
    int32_t layer = 0;
    /// Called once; returns the positions that go on, ascending, some of the active ones.
    std::function<absl::StatusOr<std::vector<int32_t>>(const RowPass&, KeepGoing)> choose;
  };

  /// Begins with the embeddings of the tokens at `active` (ascending; the last prompt token among them).
  static absl::StatusOr<std::unique_ptr<RowPass>> Create(const PassContext& context, KvLoader& loader,
                                                         std::vector<int32_t> active,
                                                         std::optional<Measure> measure = std::nullopt,
                                                         std::optional<Selection> selection = std::nullopt);

  /// Does one unit, or waits a moment if stored KV has not arrived yet. Returns whether it was the last.
  /// Errors: the loader's, the backend's, keep_going's.
  absl::StatusOr<bool> Step(KeepGoing keep_going);

  /// Whether the last Step waited in vain for stored KV, which is still on its way.
  bool is_waiting() const { return is_waiting_ && !loader_.HasArrived(); }
  /// Positions of the rows.
  absl::Span<const int32_t> active() const { return active_; }
  /// One measurement of the pass, and the account that its seconds, without loading and choosing, were
  /// charged to.
  struct Charges {
    PassMeasurement measurement;
    WorkTimes::Account account;
  };
  /// Valid after the last unit.
  const std::vector<Charges>& measurements() const { return measurements_; }

 private:
  enum class Phase : uint8_t { kProject, kAttend, kMlp };

  RowPass(const PassContext& context, KvLoader& loader, std::optional<Measure> measure,
          std::optional<Selection> selection);

  /// Before a selection every row is needed for it.
  bool DropsRows() const;
  /// Which stored KV is loaded, and for whom.
  KvLoader::Which which() const;
  Readers readers() const;
  absl::Status RunUnit(KeepGoing keep_going);
  /// Notes that a layer is over, in the request's trace.
  void TraceLayer();
  absl::Status BeginLayer();
  /// Places stored KV. Returns whether it has arrived.
  absl::StatusOr<bool> LoadLayer(KeepGoing keep_going);
  /// All rows are projected: writes their KV and makes the queries ready.
  absl::Status EndProjection(KeepGoing keep_going);
  /// Moves stored KV of tokens that are not recomputed as that of the recomputed ones around them deviates.
  absl::Status SpreadDeviation();
  absl::Status Select(KeepGoing keep_going);
  absl::Status MeasureAttention();
  absl::Status AttendNext();
  void NextLayer();
  /// Drops the rows before `position`.
  absl::Status KeepFrom(int32_t position);
  absl::Status KeepRows(std::vector<int32_t> positions);
  absl::Status PlanAllRows();
  int32_t NumAttentionParts() const;
  void BeginMeasurement();
  void EndMeasurement(int32_t layers);

  const PassContext& context_;
  KvLoader& loader_;
  const std::optional<Measure> measure_;
  const std::optional<Selection> selection_;
  const std::vector<FirstNeeded> first_needed_;  // empty: every row is needed to the end
  const int32_t end_layer_;

  std::vector<int32_t> active_;
  std::unique_ptr<kernels::BatchPlan> rows_;                // all of active_
  std::vector<std::unique_ptr<kernels::BatchPlan>> parts_;  // of it, for attention; empty: not planned yet
  bool selected_ = false;
  int32_t layer_ = 0;
  Phase phase_ = Phase::kProject;
  int32_t unit_ = 0;         // within the phase
  bool has_begun_ = false;   // the layer
  int64_t layer_begin_ = 0;  // by the trace's clock
  bool is_waiting_ = false;
  bool has_attended_ = false;                        // in this layer, while it was measured
  PassSize measured_;                                // the rows of the current measurement
  WorkTimes::Account account_ = WorkTimes::kNobody;  // that it is charged to
  std::vector<Charges> measurements_;
};

}  // namespace kvblend::blend
