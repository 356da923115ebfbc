// Places stored chunk KV into the pages of a sequence: K is rotated from its un-rotated stored form to the
// position that the chunk has in this prompt, which is exact at any position (no delta rotation of rounded
// values). Where there is a learned correction (engine/kv/learned_correction.h), it is applied to KV that is
// reused inexactly. In a layer with a sliding window, a span that no row of the pass sees is neither read nor
// placed; what the pages hold there does not count.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/blend/acquire_layer.h"
#include "engine/blend/costs/work_times.h"
#include "engine/blend/pass_context.h"
#include "engine/blend/visibility.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// Loads layer by layer, each span once. The context must outlive it; the plan's entries stay pinned by the
/// plan. Not thread-safe.
class KvLoader {
 public:
  enum class Which : uint8_t { kAll, kExactOnly };

  /// The accounts that its time is charged to.
  struct Accounts {
    WorkTimes* times = nullptr;                     // null: none
    WorkTimes::Account place = WorkTimes::kNobody;  // stored KV -> pages
    WorkTimes::Account stall = WorkTimes::kNobody;  // waiting for layers to arrive
  };

  /// While layer l is loaded and computed with, layers up to l + context.pipeline_depth are asked for; 0: all
  /// at once.
  static absl::StatusOr<KvLoader> Create(const PassContext& context, const Accounts& accounts);

  /// Asks for the layers that `readers` need in this layer and those that come next.
  void AskFrom(int32_t layer, Which which, const Readers& readers);

  /// Calls AskFrom for this layer, and waits for it, for kTurnPatience at most. Returns whether all that Load
  /// will place has arrived. Errors: an entry's.
  absl::StatusOr<bool> Await(int32_t layer, Which which, const Readers& readers);

  /// Calls AskFrom for this layer, and writes into the pages the KV of the layer that `readers` see and that
  /// is not there yet. Waits for what is still on its way. Errors: an entry's (see
  /// store::ChunkHandle::AcquireLayer), keep_going's.
  absl::Status Load(int32_t layer, Which which, const Readers& readers, KeepGoing keep_going);

  /// Asks for one layer of all entries.
  void AskForLayer(int32_t layer);
  /// Waits for one layer of all entries, for kTurnPatience at most. Returns whether it has arrived. Errors:
  /// an entry's.
  absl::StatusOr<bool> AwaitLayer(int32_t layer);
  /// Whether what Await or AwaitLayer last waited for in vain has arrived by now, or failed. Does not wait.
  bool HasArrived() const;
  /// One layer of a span that has an entry, corrected where it has to be; valid until the next call of this
  /// or Load.
  absl::StatusOr<store::LayerKv> Acquire(const PlannedSpan& span, int32_t layer, KeepGoing keep_going);

  /// The spans, by their prompt positions, of whose inexactly reused KV the layer's part is in the pages, and
  /// was computed behind an anchor, whichever.
  std::vector<kernels::ColumnRange> AnchoredSpans(int32_t layer) const;

  WorkTimes* times() const { return accounts_.times; }
  /// How much was placed so far, in tokens times layers.
  int64_t token_layers() const { return token_layers_; }
  /// Bytes of stored KV that no row sees. Valid after the last Load.
  int64_t skipped_bytes() const;

 private:
  enum class State : uint8_t { kUntouched, kSkipped, kLoaded };
  struct Placement {
    const PlannedSpan* span;
    std::unique_ptr<kernels::BatchPlan> rows;
    std::vector<State> layers;
  };
  KvLoader(const PassContext& context, const Accounts& accounts);

  /// Waits for the layer of what is wanted of the placements, until `deadline`.
  absl::StatusOr<bool> AwaitUntil(absl::Time deadline, int32_t layer,
                                  absl::FunctionRef<bool(const Placement&)> is_wanted);
  bool IsWanted(const Placement& placement, int32_t layer, Which which,
                absl::Span<const int32_t> readers) const;
  /// As Acquire, without the correction.
  absl::StatusOr<store::LayerKv> AcquireStored(const PlannedSpan& span, int32_t layer, KeepGoing keep_going);
  /// What corrects a layer of a span; null: nothing does.
  const kernels::KvCorrection* CorrectionOf(const PlannedSpan& span, int32_t layer) const;
  /// Memory for what a correction makes of `stored`.
  struct Corrected {
    kernels::MutableKvSectionView k, v;
  };
  absl::StatusOr<Corrected> MemoryFor(const store::LayerKv& stored, int32_t layer);
  /// Sets that memory for all items that have a correction.
  absl::Status SetMemory(int32_t layer, std::vector<kernels::KvLoadItem>& items);

  const PassContext* context_;
  Accounts accounts_;
  std::vector<int32_t> windows_;
  std::vector<Placement> placements_;
  int64_t token_layers_ = 0;
  const store::ChunkHandle* late_ = nullptr;  // what was last waited for in vain,
  int32_t late_layer_ = 0;                    // and its layer
};

}  // namespace kvblend::blend
