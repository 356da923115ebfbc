// The KV of a chunk on its way from a lower tier into host memory, layer by layer.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/lower_tier.h"
#include "engine/store/read_meter.h"

namespace kvblend::store {

/// Layers become readable one by one: whoever computes with layer l finds l + 1 there, or on its way. A layer
/// is read once somebody has asked for it, at the latest the one who waits for it. The memory lives until the
/// last read has ended, whoever still wants it. Thread-safe.
class ArrivingKv : public std::enable_shared_from_this<ArrivingKv> {
 public:
  /// `prompt`: whose reads these are; `meter` outlives this. REQUIRES: `kv` has the shape of the entry's
  /// header.
  ArrivingKv(std::shared_ptr<LowerTierEntry> source, std::shared_ptr<ChunkKv> kv, uint64_t prompt,
             ReadMeter& meter);

  Tier tier() const { return source_->tier(); }
  int32_t num_layers() const { return kv_->format().num_layers; }

  /// Asks for one layer, unless somebody has.
  void Ask(int32_t layer) { AskAs(prompt_, layer); }
  /// Asks for all that nobody has asked for, behind what prompts wait for.
  void AskForRest();

  /// OK once the layer is there; asks for it if nobody has. kDataLoss: the entry can't be read; it is a miss
  /// from now on. kDeadlineExceeded: neither by `deadline`.
  absl::Status WaitForLayer(int32_t layer, absl::Time deadline);

  /// Nobody wants it any more: reads that have not begun are left out, and no more are asked for.
  void Cancel();

  /// All layers are there.
  bool complete() const { return num_missing() == 0; }
  /// Layers that are not there yet.
  int32_t num_missing() const { return missing_.load(std::memory_order_acquire); }
  bool failed() const;
  /// It failed because the tier had no room for a read, which says nothing of the entry.
  bool refused() const;
  /// Layers that nobody has asked for.
  int32_t num_unasked() const { return unasked_.load(std::memory_order_acquire); }

 private:
  void AskAs(uint64_t prompt, int32_t layer);
  void LayerDone(int32_t layer, const absl::Status& status);

  const std::shared_ptr<LowerTierEntry> source_;
  const std::shared_ptr<ChunkKv> kv_;
  const uint64_t prompt_;
  ReadMeter& meter_;
  std::atomic<int32_t> missing_;  // layers
  std::atomic<int32_t> unasked_;  // layers

  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<bool> asked_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> arrived_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReadId> reads_ ABSL_GUARDED_BY(mutex_);  // begun
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);       // the first
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;       // why
};

/// The reads of one prompt's lookups. They begin when the prompt is ready for them, layer by layer over all
/// chunks: an entry's header does not queue behind the layers of the entry before, and what is needed first
/// is read first. Used by one thread.
class PromptReads {
 public:
  /// `prompt`: from ChunkStore::NewPrompt.
  explicit PromptReads(uint64_t prompt) : prompt_(prompt) {}
  PromptReads(const PromptReads&) = delete;
  PromptReads& operator=(const PromptReads&) = delete;

  uint64_t prompt() const { return prompt_; }
  void Add(std::shared_ptr<ArrivingKv> arriving) { arriving_.push_back(std::move(arriving)); }

  /// Asks for all layers of all entries, layer by layer.
  void AskForAll();

  /// Until when all lookups of this prompt together may wait for tiers across the network: `budget` from the
  /// first call on.
  absl::Time LookupDeadline(absl::Duration budget);

 private:
  const uint64_t prompt_;
  std::optional<absl::Time> lookup_deadline_;
  std::vector<std::shared_ptr<ArrivingKv>> arriving_;
};

}  // namespace kvblend::store
