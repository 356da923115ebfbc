#include "engine/blend/kv_loader.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace kvblend::blend {

absl::StatusOr<KvLoader> KvLoader::Create(const ReusePlan& plan, const PagedSequence& sequence,
                                          const kernels::RopeTable& rope, kernels::Backend& backend,
                                          int32_t pipeline_depth) {
  KvLoader loader(sequence, rope, backend, plan.reads.get(), pipeline_depth);
  loader.AskFrom(0);
  for (const PlannedSpan& span : plan.spans) {
    if (!span.entry.has_value()) continue;
    KVBLEND_ASSIGN_OR_RETURN(auto rows, sequence.PlanRange(span.begin, span.end, plan.prompt_tokens));
    loader.placements_.push_back({&span, std::move(rows)});
  }
  return loader;
}

void KvLoader::AskFrom(int32_t layer) {
  if (reads_ == nullptr) return;
  if (pipeline_depth_ == 0) {
    reads_->AskForAll();
  } else {
    reads_->AskUpTo(layer + pipeline_depth_);
  }
}

absl::Status KvLoader::Load(kernels::Stream& stream, int32_t layer, Which which, KeepGoing keep_going) {
  const absl::Time start = absl::Now();
  AskFrom(layer);
  for (const Placement& placement : placements_) {
    if (which == Which::kExactOnly && placement.span->source != ChunkSource::kExact) continue;
    const absl::Time wait_start = absl::Now();
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored,
                             AcquireLayer(*placement.span->entry, layer, keep_going));
    stall_seconds_ += absl::ToDoubleSeconds(absl::Now() - wait_start);
    KVBLEND_RETURN_IF_ERROR(
        backend_->KvLoad(stream, *placement.rows, *rope_, stored.k, stored.v, sequence_->Layer(layer)));
    token_layers_ += placement.span->num_tokens();
  }
  seconds_ += absl::ToDoubleSeconds(absl::Now() - start);
  return absl::OkStatus();
}

}  // namespace kvblend::blend
