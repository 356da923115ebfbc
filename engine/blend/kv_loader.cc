#include "engine/blend/kv_loader.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace kvblend::blend {

absl::StatusOr<KvLoader> KvLoader::Create(const ReusePlan& plan, const PagedSequence& sequence,
                                          const model::Transformer& transformer, int32_t pipeline_depth,
                                          CorrectionOnLoad& correction) {
  KvLoader loader(sequence, transformer, plan.reads.get(), pipeline_depth, correction);
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
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv kv, Acquire(stream, *placement.span, layer, keep_going));
    KVBLEND_RETURN_IF_ERROR(transformer_->backend().KvLoad(stream, *placement.rows, transformer_->rope(layer),
                                                           kv.k, kv.v, sequence_->Layer(layer)));
    token_layers_ += placement.span->num_tokens();
  }
  seconds_ += absl::ToDoubleSeconds(absl::Now() - start);
  return absl::OkStatus();
}

absl::StatusOr<store::LayerKv> KvLoader::Acquire(kernels::Stream& stream, const PlannedSpan& span,
                                                 int32_t layer, KeepGoing keep_going) {
  const absl::Time wait_start = absl::Now();
  KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored, AcquireLayer(*span.entry, layer, keep_going));
  stall_seconds_ += absl::ToDoubleSeconds(absl::Now() - wait_start);
  const kernels::KvCorrection* correction =
      correction_->correction == nullptr ? nullptr : correction_->correction->layers[layer].get();
  // What stands where it was computed is right as it is, and what stood behind other tokens deviates otherwise.
  if (correction == nullptr || span.source != ChunkSource::kBlended) return stored;
  const kernels::DataType dtype = sequence_->Layer(layer).dtype == kernels::DataType::kBF16
                                      ? kernels::DataType::kBF16
                                      : kernels::DataType::kF32;
  const auto section = [&](model::ScratchMatrix& memory,
                           kernels::KvPart part) -> absl::StatusOr<kernels::MutableKvSectionView> {
    // Sections end at multiples of their alignment.
    KVBLEND_ASSIGN_OR_RETURN(
        const kernels::MatrixView view,
        memory.Resize(transformer_->backend(), stored.k.rows + kernels::kKvSectionAlignment, stored.k.cols,
                      dtype));
    return kernels::MutableKvSectionView{view.data, kernels::DenseEncoding(dtype), part, stored.k.rows,
                                         stored.k.cols};
  };
  KVBLEND_ASSIGN_OR_RETURN(const auto k, section(correction_->k, kernels::KvPart::kKey));
  KVBLEND_ASSIGN_OR_RETURN(const auto v, section(correction_->v, kernels::KvPart::kValue));
  KVBLEND_RETURN_IF_ERROR(transformer_->backend().CorrectKv(stream, stored.k, stored.v, *correction, k, v));
  return store::LayerKv{k, v};
}

}  // namespace kvblend::blend
