// Precomputation of a request's chunks, one after the other; between two of them, other requests get their
// turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "engine/serve/sequences/prompt_runner.h"
#include "engine/serve/task.h"

namespace kvblend {

class PutChunksTask final : public Task {
 public:
  /// The request must have been validated; the tokens are its anchor's and chunks'. `seconds_per_token`: to
  /// compute one; 0: not known.
  PutChunksTask(PutChunksRequest request, std::vector<int32_t> anchor_ids,
                std::vector<std::vector<int32_t>> chunk_ids, double seconds_per_token,
                std::shared_ptr<PutChunksObserver> observer);

  /// Returns false after every chunk; finishes the request after the last one or on error. A chunk is
  /// reported when it is on disk: for that of the one before, and of the last one, it waits for its turn
  /// without holding up others.
  bool Advance(PromptRunner& runner) override;
  double predicted_seconds_left() const override;
  double queue_seconds() const override { return SecondsOf(next_, next_ + 1); }
  double continued_seconds() const override {
    return SecondsOf(next_ + 1, static_cast<int32_t>(chunk_ids_.size()));
  }
  /// Reports a chunk that was stored before, whether or not it is on disk by now.
  void Abandon(const absl::Status& status) override;

  bool unfinished() const override { return !finished_; }
  int32_t max_working_tokens() const override;

 private:
  /// How long a slow disk is waited for.
  static constexpr absl::Duration kMaxWriteWait = absl::Seconds(10);

  /// To compute the chunks [first, last).
  double SecondsOf(int32_t first, int32_t last) const;
  /// Returns whether the next chunk is stored: `stored_`.
  absl::StatusOr<bool> PutNext(PromptRunner& runner);
  /// How many tokens were computed of the chunk that is not stored. REQUIRES: storing_
  int64_t UnstoredTokens() const;
  /// Whether what is to be reported is on its way to the disk and worth waiting for.
  bool WaitsForDisk(PromptRunner& runner) const;
  /// Returns whether it did, or there was nothing to report.
  bool ReportStored(PromptRunner& runner);
  /// REQUIRES: unreported_
  void Report(PromptRunner& runner);

  const PutChunksRequest request_;
  const std::vector<int32_t> anchor_ids_;
  const std::vector<std::vector<int32_t>> chunk_ids_;
  const double seconds_per_token_;
  const std::shared_ptr<PutChunksObserver> observer_;
  int32_t next_ = 0;
  PromptRunner* runner_ = nullptr;                   // of the first Advance
  std::unique_ptr<ChunkStoring> storing_;            // while it is in progress
  std::optional<absl::Status> put_;                  // how that ended, until this turn does
  std::optional<StoredChunk> stored_;                // what came of it
  std::optional<StoredChunk> unreported_;            // the one before next_, on its way to the disk
  absl::Time waits_since_ = absl::InfiniteFuture();  // for that
  bool finished_ = false;
};

}  // namespace kvblend
