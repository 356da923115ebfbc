#include "engine/blend/chunk_precompute.h"

#include <utility>

#include "base/status_macros.h"

namespace kvblend::blend {

ChunkPrecompute::ChunkPrecompute(const PrecomputeInput& input, const model::Transformer& transformer,
                                 kernels::Stream& stream, model::PassState& state,
                                 const PagedSequence& sequence)
    : input_(input),
      transformer_(transformer),
      stream_(stream),
      state_(state),
      sequence_(sequence),
      loads_anchor_(input.anchor != nullptr && !input.anchor_ids.empty()) {}

ChunkPrecompute::~ChunkPrecompute() { transformer_.backend().Synchronize(stream_).IgnoreError(); }

absl::StatusOr<std::unique_ptr<ChunkPrecompute>> ChunkPrecompute::Create(
    const PrecomputeInput& input, const store::KvFormat& format, store::HostMemory& memory,
    const model::Transformer& transformer, kernels::Stream& stream, model::PassState& state,
    const PagedSequence& sequence) {
  std::unique_ptr<ChunkPrecompute> precompute(
      new ChunkPrecompute(input, transformer, stream, state, sequence));
  KVBLEND_ASSIGN_OR_RETURN(
      precompute->chunk_,
      store::ChunkKv::Allocate(format, static_cast<int32_t>(input.token_ids.size()), memory));
  if (!input.token_ids.empty()) KVBLEND_RETURN_IF_ERROR(precompute->Begin());
  return precompute;
}

absl::Status ChunkPrecompute::Begin() {
  const auto anchor_tokens = static_cast<int32_t>(input_.anchor_ids.size());
  const int32_t total_tokens = anchor_tokens + static_cast<int32_t>(input_.token_ids.size());
  std::vector<int32_t> token_ids;
  if (!loads_anchor_) token_ids.assign(input_.anchor_ids.begin(), input_.anchor_ids.end());
  token_ids.insert(token_ids.end(), input_.token_ids.begin(), input_.token_ids.end());
  KVBLEND_ASSIGN_OR_RETURN(
      rows_, sequence_.PlanRange(loads_anchor_ ? anchor_tokens : 0, total_tokens, total_tokens));
  KVBLEND_ASSIGN_OR_RETURN(anchor_rows_, sequence_.PlanRange(0, anchor_tokens, total_tokens));
  return transformer_.Begin(stream_, token_ids, state_);
}

absl::StatusOr<bool> ChunkPrecompute::Step(KeepGoing keep_going) {
  const int64_t chunk_tokens = static_cast<int64_t>(input_.token_ids.size());
  if (chunk_tokens == 0) return true;
  kernels::Backend& backend = transformer_.backend();
  KVBLEND_RETURN_IF_ERROR(keep_going());
  const kernels::KvPagesView pages = sequence_.Layer(layer_);
  if (loads_anchor_) {
    KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored, AcquireLayer(*input_.anchor, layer_, keep_going));
    KVBLEND_RETURN_IF_ERROR(
        backend.KvLoad(stream_, *anchor_rows_, transformer_.rope(layer_), stored.k, stored.v, pages));
  }
  KVBLEND_RETURN_IF_ERROR(transformer_.ProjectQkv(stream_, layer_, state_));
  const store::MutableLayerKv out = chunk_->MutableLayer(layer_);
  const int64_t first_row = rows_->num_rows() - chunk_tokens;
  KVBLEND_RETURN_IF_ERROR(
      backend.EncodeKv(stream_, transformer_.Keys(state_).Rows(first_row, chunk_tokens), out.k));
  KVBLEND_RETURN_IF_ERROR(
      backend.EncodeKv(stream_, transformer_.Values(state_).Rows(first_row, chunk_tokens), out.v));
  if (++layer_ == transformer_.config().num_layers) {  // nothing reads the last layer's output
    KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream_));
    return true;
  }
  const int32_t layer = layer_ - 1;
  KVBLEND_RETURN_IF_ERROR(transformer_.WriteKv(stream_, layer, *rows_, state_, pages));
  KVBLEND_RETURN_IF_ERROR(transformer_.RotateQueries(stream_, layer, *rows_, state_));
  KVBLEND_RETURN_IF_ERROR(transformer_.AttendAndMlp(stream_, layer, *rows_, pages, state_));
  return false;
}

}  // namespace kvblend::blend
