#include "engine/blend/kv_loader.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace kvblend::blend {

KvLoader::KvLoader(const PassContext& context, const Accounts& accounts)
    : context_(&context), accounts_(accounts), windows_(WindowsOf(context.transformer.config())) {}

absl::StatusOr<KvLoader> KvLoader::Create(const PassContext& context, const Accounts& accounts) {
  KvLoader loader(context, accounts);
  for (const PlannedSpan& span : context.plan.spans) {
    if (!span.entry.has_value()) continue;
    KVBLEND_ASSIGN_OR_RETURN(auto rows,
                             context.sequence.PlanRange(span.begin, span.end, context.plan.prompt_tokens));
    loader.placements_.push_back(
        {&span, std::move(rows), std::vector<State>(loader.windows_.size(), State::kUntouched)});
  }
  return loader;
}

bool KvLoader::IsWanted(const Placement& placement, int32_t layer, Which which,
                        absl::Span<const int32_t> readers) const {
  const PlannedSpan& span = *placement.span;
  if (placement.layers[layer] == State::kLoaded ||
      (which == Which::kExactOnly && span.source != ChunkSource::kExact)) {
    return false;
  }
  return AnySees(readers, windows_[layer], span.begin, span.end);
}

void KvLoader::AskFrom(int32_t layer, Which which, const Readers& readers) {
  const auto num_layers = static_cast<int32_t>(windows_.size());
  const int32_t depth = context_->pipeline_depth,
                last = depth == 0 ? num_layers - 1 : std::min(num_layers - 1, layer + depth);
  for (int32_t next = layer; next <= last; ++next) {
    for (const Placement& placement : placements_) {
      if (IsWanted(placement, next, which, readers.In(next))) placement.span->entry->AskForLayer(next);
    }
  }
}

void KvLoader::AskForLayer(int32_t layer) {
  for (const Placement& placement : placements_) placement.span->entry->AskForLayer(layer);
}

absl::StatusOr<bool> KvLoader::Await(int32_t layer, Which which, const Readers& readers) {
  const Charged charged(accounts_.times, accounts_.stall);
  AskFrom(layer, which, readers);
  return AwaitUntil(absl::Now() + kTurnPatience, layer, [&](const Placement& placement) {
    return IsWanted(placement, layer, which, readers.In(layer));
  });
}

absl::StatusOr<bool> KvLoader::AwaitLayer(int32_t layer) {
  const Charged charged(accounts_.times, accounts_.stall);
  AskForLayer(layer);
  return AwaitUntil(absl::Now() + kTurnPatience, layer, [](const Placement& placement) {
    return placement.span->source != ChunkSource::kExact;  // exact KV is compared with nothing
  });
}

absl::StatusOr<bool> KvLoader::AwaitUntil(absl::Time deadline, int32_t layer,
                                          absl::FunctionRef<bool(const Placement&)> is_wanted) {
  const int64_t trace_begin = TraceNow(context_->trace);
  absl::Status arrived;
  for (const Placement& placement : placements_) {
    if (!arrived.ok() || !is_wanted(placement)) continue;
    arrived = placement.span->entry->AcquireLayer(layer, deadline).status();
    if (absl::IsDeadlineExceeded(arrived)) {
      late_ = &*placement.span->entry;
      late_layer_ = layer;
    }
  }
  if (context_->trace != nullptr && !placements_.empty()) {
    context_->trace->AddUnit(
        {.name = "wait for stored KV", .begin = trace_begin, .end = context_->trace->Now(), .layer = layer});
  }
  if (absl::IsDeadlineExceeded(arrived)) return false;
  KVBLEND_RETURN_IF_ERROR(arrived);
  return true;
}

bool KvLoader::HasArrived() const {
  return late_ == nullptr ||
         !absl::IsDeadlineExceeded(late_->AcquireLayer(late_layer_, absl::InfinitePast()).status());
}

absl::Status KvLoader::Load(int32_t layer, Which which, const Readers& readers, KeepGoing keep_going) {
  const Charged charged(accounts_.times, accounts_.place);
  const TracedUnit traced(placements_.empty() ? nullptr : context_->trace, "place stored KV", layer);
  AskFrom(layer, which, readers);
  std::vector<kernels::KvLoadItem> items;
  std::vector<Placement*> loaded;
  for (Placement& placement : placements_) {
    if (!IsWanted(placement, layer, which, readers.In(layer))) {
      if (which == Which::kAll && placement.layers[layer] == State::kUntouched) {
        placement.layers[layer] = State::kSkipped;
      }
      continue;
    }
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv kv, AcquireStored(*placement.span, layer, keep_going));
    items.push_back({placement.rows.get(), kv.k, kv.v, CorrectionOf(*placement.span, layer)});
    loaded.push_back(&placement);
  }
  KVBLEND_RETURN_IF_ERROR(SetMemory(layer, items));
  KVBLEND_RETURN_IF_ERROR(context_->backend().KvLoadAll(
      context_->stream, items, context_->transformer.rope(layer), context_->sequence.Layer(layer)));
  for (Placement* placement : loaded) {
    placement->layers[layer] = State::kLoaded;
    token_layers_ += placement->span->num_tokens();
  }
  return absl::OkStatus();
}

std::vector<kernels::ColumnRange> KvLoader::AnchoredSpans(int32_t layer) const {
  std::vector<kernels::ColumnRange> spans;
  for (const Placement& placement : placements_) {
    const PlannedSpan& span = *placement.span;
    if (placement.layers[layer] != State::kLoaded || span.source == ChunkSource::kExact) continue;
    if (span.entry->anchor_hash() == store::IsolatedAnchorHash()) continue;
    spans.push_back({placement.span->begin, placement.span->end});
  }
  return spans;
}

int64_t KvLoader::skipped_bytes() const {
  int64_t bytes = 0;
  for (const Placement& placement : placements_) {
    const store::ChunkHandle& entry = *placement.span->entry;
    const int64_t layer_bytes =
        store::ChunkKv::SizeBytes(entry.format(), entry.num_tokens()).value_or(0) / entry.format().num_layers;
    bytes += layer_bytes * std::count(placement.layers.begin(), placement.layers.end(), State::kSkipped);
  }
  return bytes;
}

absl::StatusOr<store::LayerKv> KvLoader::AcquireStored(const PlannedSpan& span, int32_t layer,
                                                       KeepGoing keep_going) {
  const Charged charged(accounts_.times, accounts_.stall);
  return AcquireLayer(*span.entry, layer, keep_going);
}

const kernels::KvCorrection* KvLoader::CorrectionOf(const PlannedSpan& span, int32_t layer) const {
  // Exact KV needs no correction, and KV computed behind another anchor deviates in other ways.
  if (context_->correction == nullptr || span.source != ChunkSource::kBlended) return nullptr;
  return context_->correction->layers[layer].get();
}

absl::Status KvLoader::SetMemory(int32_t layer, std::vector<kernels::KvLoadItem>& items) {
  // Items use one memory in turn. It is sized for the largest first, so that it stays where it is.
  const kernels::KvLoadItem* largest = nullptr;
  for (const kernels::KvLoadItem& item : items) {
    if (item.correction != nullptr && (largest == nullptr || item.k.rows > largest->k.rows)) largest = &item;
  }
  if (largest == nullptr) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(MemoryFor({largest->k, largest->v}, layer).status());
  for (kernels::KvLoadItem& item : items) {
    if (item.correction == nullptr) continue;
    KVBLEND_ASSIGN_OR_RETURN(const Corrected memory, MemoryFor({item.k, item.v}, layer));
    item.k_memory = memory.k;
    item.v_memory = memory.v;
  }
  return absl::OkStatus();
}

absl::StatusOr<KvLoader::Corrected> KvLoader::MemoryFor(const store::LayerKv& stored, int32_t layer) {
  const kernels::DataType dtype = context_->sequence.Layer(layer).dtype == kernels::DataType::kBF16
                                      ? kernels::DataType::kBF16
                                      : kernels::DataType::kF32;
  const auto section = [&](model::ScratchMatrix& memory,
                           kernels::KvPart part) -> absl::StatusOr<kernels::MutableKvSectionView> {
    // Sections end at multiples of their alignment.
    KVBLEND_ASSIGN_OR_RETURN(const kernels::MatrixView view,
                             memory.Resize(context_->backend(), stored.k.rows + kernels::kKvSectionAlignment,
                                           stored.k.cols, dtype));
    return kernels::MutableKvSectionView{view.data, kernels::DenseEncoding(dtype), part, stored.k.rows,
                                         stored.k.cols};
  };
  KVBLEND_ASSIGN_OR_RETURN(const auto k, section(context_->scratch.corrected_k, kernels::KvPart::kKey));
  KVBLEND_ASSIGN_OR_RETURN(const auto v, section(context_->scratch.corrected_v, kernels::KvPart::kValue));
  return Corrected{k, v};
}

absl::StatusOr<store::LayerKv> KvLoader::Acquire(const PlannedSpan& span, int32_t layer,
                                                 KeepGoing keep_going) {
  KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored, AcquireStored(span, layer, keep_going));
  const kernels::KvCorrection* correction = CorrectionOf(span, layer);
  if (correction == nullptr) return stored;
  KVBLEND_ASSIGN_OR_RETURN(const Corrected memory, MemoryFor(stored, layer));
  KVBLEND_RETURN_IF_ERROR(
      context_->backend().CorrectKv(context_->stream, stored.k, stored.v, *correction, memory.k, memory.v));
  return store::LayerKv{memory.k, memory.v};
}

}  // namespace kvblend::blend
