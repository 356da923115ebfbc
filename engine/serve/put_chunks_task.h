// Precomputation of a request's chunks, one after the other; between two of them, other requests get their turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/engine.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/serve/task.h"

namespace kvblend {

class PutChunksTask final : public Task {
 public:
  /// The request must have been validated; the tokens are its anchor's and chunks'.
  PutChunksTask(PutChunksRequest request, std::vector<int32_t> anchor_ids,
                std::vector<std::vector<int32_t>> chunk_ids, std::shared_ptr<PutChunksObserver> observer);

  /// Returns false after every chunk; finishes the request after the last one or on error.
  bool Advance(PromptRunner& runner) override;
  void Abandon(const absl::Status& status) override { observer_->OnDone(status); }

  bool unfinished() const override { return !finished_; }
  int32_t max_working_tokens() const override;

 private:
  /// Returns whether the next chunk is stored.
  absl::StatusOr<bool> PutNext(PromptRunner& runner);
  void ReportStored(PromptRunner& runner);

  const PutChunksRequest request_;
  const std::vector<int32_t> anchor_ids_;
  const std::vector<std::vector<int32_t>> chunk_ids_;
  const std::shared_ptr<PutChunksObserver> observer_;
  int32_t next_ = 0;
  std::unique_ptr<ChunkStoring> storing_;  // while it is in progress
  std::optional<StoredChunk> unreported_;  // the one before next_, on its way to the disk
  bool finished_ = false;
};

}  // namespace kvblend
