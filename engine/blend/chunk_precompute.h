// Computes the KV of a chunk ahead of its use, behind an anchor whose own KV is then dropped.
//
// If a chunk is computed by itself, its first tokens become attention sinks, which tokens in the middle of a
// prompt are not. Behind the prompt's own system text they do not become sinks. With an empty anchor the
// chunk is isolated, as in the CacheBlend paper.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/blend/acquire_layer.h"
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

/// Computes one chunk layer by layer, so that it can be interrupted. What Create is given must outlive it.
/// Not thread-safe.
class ChunkPrecompute {
 public:
  /// REQUIRES: the sequence has pages for anchor and chunk together.
  static absl::StatusOr<std::unique_ptr<ChunkPrecompute>> Create(
      const PrecomputeInput& input, const store::KvFormat& format, store::HostMemory& memory,
      const model::Transformer& transformer, kernels::Stream& stream, model::PassState& state,
      const PagedSequence& sequence);
  /// Waits for the device, which may still be writing into the chunk.
  ~ChunkPrecompute();

  /// One layer. Returns whether it was the last. Errors: the anchor's entry's, the backend's, keep_going's.
  absl::StatusOr<bool> Step(KeepGoing keep_going);

  /// The chunk's KV, K un-rotated, in the format and memory asked for. REQUIRES: Step has returned true.
  std::unique_ptr<store::ChunkKv> TakeChunk() { return std::move(chunk_); }

 private:
  ChunkPrecompute(const PrecomputeInput& input, const model::Transformer& transformer,
                  kernels::Stream& stream, model::PassState& state, const PagedSequence& sequence);

  absl::Status Begin();

  const PrecomputeInput input_;
  const model::Transformer& transformer_;
  kernels::Stream& stream_;
  model::PassState& state_;
  const PagedSequence sequence_;
  const bool loads_anchor_;
  std::unique_ptr<store::ChunkKv> chunk_;
  std::unique_ptr<kernels::BatchPlan> rows_, anchor_rows_;
  int32_t layer_ = 0;
};

}  // namespace kvblend::blend
