// Computes the KV of a chunk ahead of its use, behind an anchor whose own KV is then dropped.
//
// The first tokens of a chunk that is computed by itself become attention sinks, which no token in the middle
// of a prompt is; behind the prompt's own system text they do not. With an empty anchor the chunk is
// isolated, as in the CacheBlend paper.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/blend/blended_prefill.h"
#include "engine/blend/paged_sequence.h"
#include "engine/model/transformer.h"
#include "engine/store/chunk_store.h"
#include "engine/store/format/chunk_kv.h"
#include "kernels/backend.h"

namespace kvblend::blend {

struct PrecomputeInput {
  absl::Span<const int32_t> anchor_ids;        // may be empty
  const store::ChunkHandle* anchor = nullptr;  // the anchor's own entry; null: it is computed
  absl::Span<const int32_t> token_ids;         // the chunk
};

/// The chunk's KV, K un-rotated, in `format`, in `memory`, which must outlive it.
/// REQUIRES: the sequence has pages for anchor and chunk together.
absl::StatusOr<std::unique_ptr<store::ChunkKv>> PrecomputeChunk(
    const PrecomputeInput& input, const store::KvFormat& format, store::HostMemory& memory,
    const model::Transformer& transformer, kernels::Stream& stream, model::PassState& state,
    const PagedSequence& sequence, KeepGoing keep_going);

}  // namespace kvblend::blend
