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
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv kv, AcquireStored(*placement.span, layer, keep_going));
    const kernels::KvPagesView pages = sequence_->Layer(layer);
    if (const kernels::KvCorrection* correction = CorrectionOf(*placement.span, layer);
        correction != nullptr) {
      KVBLEND_ASSIGN_OR_RETURN(const Corrected memory, MemoryFor(kv, layer));
      KVBLEND_RETURN_IF_ERROR(
          transformer_->backend().KvLoadCorrected(stream, *placement.rows, transformer_->rope(layer), kv.k,
                                                  kv.v, *correction, memory.k, memory.v, pages));
    } else {
      KVBLEND_RETURN_IF_ERROR(transformer_->backend().KvLoad(stream, *placement.rows,
                                                             transformer_->rope(layer), kv.k, kv.v, pages));
    }
    token_layers_ += placement.span->num_tokens();
  }
  seconds_ += absl::ToDoubleSeconds(absl::Now() - start);
  return absl::OkStatus();
}

absl::StatusOr<store::LayerKv> KvLoader::AcquireStored(const PlannedSpan& span, int32_t layer,
                                                       KeepGoing keep_going) {
  const absl::Time wait_start = absl::Now();
  absl::StatusOr<store::LayerKv> stored = AcquireLayer(*span.entry, layer, keep_going);
  stall_seconds_ += absl::ToDoubleSeconds(absl::Now() - wait_start);
  return stored;
}

const kernels::KvCorrection* KvLoader::CorrectionOf(const PlannedSpan& span, int32_t layer) const {
  // What stands where it was computed is right as it is, and what stood behind other tokens deviates otherwise.
  if (correction_->correction == nullptr || span.source != ChunkSource::kBlended) return nullptr;
  return correction_->correction->layers[layer].get();
}

absl::StatusOr<KvLoader::Corrected> KvLoader::MemoryFor(const store::LayerKv& stored, int32_t layer) {
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
  return Corrected{k, v};
}

absl::StatusOr<store::LayerKv> KvLoader::Acquire(kernels::Stream& stream, const PlannedSpan& span,
                                                 int32_t layer, KeepGoing keep_going) {
  KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored, AcquireStored(span, layer, keep_going));
  const kernels::KvCorrection* correction = CorrectionOf(span, layer);
  if (correction == nullptr) return stored;
  KVBLEND_ASSIGN_OR_RETURN(const Corrected memory, MemoryFor(stored, layer));
  KVBLEND_RETURN_IF_ERROR(
      transformer_->backend().CorrectKv(stream, stored.k, stored.v, *correction, memory.k, memory.v));
  return store::LayerKv{memory.k, memory.v};
}

}  // namespace kvblend::blend
