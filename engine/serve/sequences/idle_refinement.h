// What the engine does while there is nothing else to do: kept conversations are prefilled in full behind
// their answers, a little at a time, so that their later turns read KV that nears full prefill's
// (engine/blend/refinement/sequence_refinement.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/blend/refinement/sequence_refinement.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/kept_sequences.h"
#include "engine/serve/sequences/scratch_pool.h"

namespace kvblend {

/// For the engine thread only, except refined_tokens(). References must outlive it.
class IdleRefinement {
 public:
  /// Tokens that are computed together: enough to keep the products efficient, few enough that little is lost
  /// when the conversation goes on meanwhile.
  static constexpr int32_t kRows = 512;

  IdleRefinement(ModelRuntime& runtime, KeptSequences& kept, ScratchPool& scratch)
      : runtime_(runtime), kept_(kept), scratch_pool_(scratch) {}

  /// Does a unit of work, a part of a layer, and waits for it: on the sequence used last that is not exact
  /// throughout. Returns whether there is more to do.
  bool Step();

  /// Tokens made exact since the start. Any thread may ask.
  int64_t refined_tokens() const { return refined_tokens_.load(std::memory_order_relaxed); }

 private:
  absl::StatusOr<bool> Advance();
  absl::Status Begin(const KeptSequence& sequence);

  ModelRuntime& runtime_;
  KeptSequences& kept_;
  ScratchPool& scratch_pool_;
  std::atomic<int64_t> refined_tokens_ = 0;

  // These belong to the run in progress.
  KeptSequences::Id id_ = 0;
  int32_t begin_ = 0, end_ = 0;
  ScratchPool::Lease scratch_;
  std::unique_ptr<blend::SequenceRefinement> run_;  // null: none is
};

}  // namespace kvblend
