#include "engine/blend/chunk_precompute.h"

#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"

namespace kvblend::blend {

absl::StatusOr<std::unique_ptr<store::ChunkKv>> PrecomputeChunk(
    const PrecomputeInput& input, const store::KvFormat& format, store::HostMemory& memory,
    const model::Transformer& transformer, kernels::Stream& stream, model::PassState& state,
    const PagedSequence& sequence, KeepGoing keep_going) {
  kernels::Backend& backend = transformer.backend();
  const int32_t anchor_tokens = static_cast<int32_t>(input.anchor_ids.size());
  const int32_t chunk_tokens = static_cast<int32_t>(input.token_ids.size());
  const int32_t total_tokens = anchor_tokens + chunk_tokens;
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<store::ChunkKv> chunk,
                           store::ChunkKv::Allocate(format, chunk_tokens, memory));
  if (chunk_tokens == 0) return chunk;
  // Whatever ends this early: the device may still be writing into the chunk.
  const absl::Cleanup settle = [&] { backend.Synchronize(stream).IgnoreError(); };

  const bool load_anchor = input.anchor != nullptr && anchor_tokens > 0;
  std::vector<int32_t> token_ids;
  if (!load_anchor) token_ids.assign(input.anchor_ids.begin(), input.anchor_ids.end());
  token_ids.insert(token_ids.end(), input.token_ids.begin(), input.token_ids.end());
  const int32_t first_position = load_anchor ? anchor_tokens : 0;
  KVBLEND_ASSIGN_OR_RETURN(const auto rows, sequence.PlanRange(first_position, total_tokens, total_tokens));
  KVBLEND_ASSIGN_OR_RETURN(const auto anchor_rows, sequence.PlanRange(0, anchor_tokens, total_tokens));
  const int64_t first_chunk_row = anchor_tokens - first_position;

  KVBLEND_RETURN_IF_ERROR(transformer.Begin(stream, token_ids, state));
  for (int32_t layer = 0; layer < format.num_layers; ++layer) {
    KVBLEND_RETURN_IF_ERROR(keep_going());
    const kernels::KvPagesView pages = sequence.Layer(layer);
    if (load_anchor) {
      KVBLEND_ASSIGN_OR_RETURN(const store::LayerKv stored, AcquireLayer(*input.anchor, layer, keep_going));
      KVBLEND_RETURN_IF_ERROR(
          backend.KvLoad(stream, *anchor_rows, transformer.rope(layer), stored.k, stored.v, pages));
    }
    KVBLEND_RETURN_IF_ERROR(transformer.ProjectQkv(stream, layer, state));
    const store::MutableLayerKv out = chunk->MutableLayer(layer);
    KVBLEND_RETURN_IF_ERROR(
        backend.EncodeKv(stream, transformer.Keys(state).Rows(first_chunk_row, chunk_tokens), out.k));
    KVBLEND_RETURN_IF_ERROR(
        backend.EncodeKv(stream, transformer.Values(state).Rows(first_chunk_row, chunk_tokens), out.v));
    if (layer + 1 == format.num_layers) break;  // nothing reads the last layer's output
    KVBLEND_RETURN_IF_ERROR(transformer.WriteKv(stream, layer, *rows, state, pages));
    KVBLEND_RETURN_IF_ERROR(transformer.RotateQueries(stream, layer, *rows, state));
    KVBLEND_RETURN_IF_ERROR(transformer.AttendAndMlp(stream, layer, *rows, pages, state));
  }
  KVBLEND_RETURN_IF_ERROR(backend.Synchronize(stream));
  return chunk;
}

}  // namespace kvblend::blend
