// Places stored chunk KV into the pages of a sequence: K is rotated from its un-rotated stored form to the
// position that the chunk has in this prompt, which is exact at any position (no delta rotation of rounded
// values). Where there is a learned correction (engine/kv/learned_correction.h), KV that does not stand where it was
// computed is corrected on the way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/blend/acquire_layer.h"
#include "engine/blend/paged_sequence.h"
#include "engine/blend/reuse_plan.h"
#include "engine/kv/learned_correction.h"
#include "engine/model/scratch.h"
#include "engine/model/transformer.h"
#include "kernels/backend.h"

namespace kvblend::blend {

/// A correction and memory for what it makes of one span.
struct CorrectionOnLoad {
  const kv::LoadedCorrection* correction = nullptr;  // null: KV is placed as it was stored
  model::ScratchMatrix k = {}, v = {};
};

/// Loads layer by layer. References must outlive it; the plan's entries stay pinned by the plan. Not
/// thread-safe.
class KvLoader {
 public:
  enum class Which : uint8_t { kAll, kExactOnly };

  /// Asks for the first layers. `pipeline_depth`: while layer l is loaded and computed with, layers up to
  /// l + pipeline_depth are asked for; 0: all at once.
  static absl::StatusOr<KvLoader> Create(const ReusePlan& plan, const PagedSequence& sequence,
                                         const model::Transformer& transformer, int32_t pipeline_depth,
                                         CorrectionOnLoad& correction);

  /// Asks for the layers that come next, and writes one layer of the reused spans into the pages, waiting for
  /// those that are still on their way.
  /// Errors: an entry's (see store::ChunkHandle::AcquireLayer), keep_going's.
  absl::Status Load(kernels::Stream& stream, int32_t layer, Which which, KeepGoing keep_going);

  /// One layer of a span that has an entry, corrected where it has to be; valid until the next call of this or Load.
  absl::StatusOr<store::LayerKv> Acquire(kernels::Stream& stream, const PlannedSpan& span, int32_t layer,
                                         KeepGoing keep_going);

  /// Time spent in Load so far.
  double seconds() const { return seconds_; }
  /// The part of it spent waiting for layers to arrive.
  double stall_seconds() const { return stall_seconds_; }
  /// What was placed so far, in tokens times layers.
  int64_t token_layers() const { return token_layers_; }

 private:
  struct Placement {
    const PlannedSpan* span;
    std::unique_ptr<kernels::BatchPlan> rows;
  };
  KvLoader(const PagedSequence& sequence, const model::Transformer& transformer, store::PromptReads* reads,
           int32_t pipeline_depth, CorrectionOnLoad& correction)
      : sequence_(&sequence),
        transformer_(&transformer),
        reads_(reads),
        pipeline_depth_(pipeline_depth),
        correction_(&correction) {}

  void AskFrom(int32_t layer);
  /// As Acquire, uncorrected.
  absl::StatusOr<store::LayerKv> AcquireStored(const PlannedSpan& span, int32_t layer, KeepGoing keep_going);
  /// What corrects a layer of a span; null: nothing does.
  const kernels::KvCorrection* CorrectionOf(const PlannedSpan& span, int32_t layer) const;
  /// Memory for what a correction makes of `stored`.
  struct Corrected {
    kernels::MutableKvSectionView k, v;
  };
  absl::StatusOr<Corrected> MemoryFor(const store::LayerKv& stored, int32_t layer);

  const PagedSequence* sequence_;
  const model::Transformer* transformer_;
  store::PromptReads* reads_;  // null: nothing to read
  int32_t pipeline_depth_;
  CorrectionOnLoad* correction_;
  std::vector<Placement> placements_;
  double seconds_ = 0;
  double stall_seconds_ = 0;
  int64_t token_layers_ = 0;
};

}  // namespace kvblend::blend
