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

/// Layers become readable one by one: while a prompt computes with layer l, layer l + 1 is there or on its
/// way. A layer is read once it has been asked for, at the latest by waiting for it. The memory lives until
/// the last read has ended, even if nobody uses the chunk any more. The source, which may be an open file, is
/// let go as soon as nothing more will be read from it. Thread-safe.
class ArrivingKv : public std::enable_shared_from_this<ArrivingKv> {
 public:
  /// `meter` outlives this. REQUIRES: `kv` has the shape of the entry's header.
  ArrivingKv(std::shared_ptr<LowerTierEntry> source, std::shared_ptr<ChunkKv> kv, ReadMeter& meter);

  Tier tier() const { return tier_; }
  int32_t num_layers() const { return kv_->format().num_layers; }

  /// Asks for one layer. If it was asked for and still waits to be read, it goes as early as the first of its
  /// readers has it.
  void Ask(Reader reader, int32_t layer);
  /// Asks for all layers that have not been asked for, after the reads that prompts wait for.
  void AskForRest();

  /// Waits for one layer, and asks for it if need be. OK: it is there. kDataLoss: the entry can't be read,
  /// and is a miss from now on. kDeadlineExceeded: neither happened by `deadline`.
  absl::Status WaitForLayer(Reader reader, int32_t layer, absl::Time deadline);

  /// Drops reads that have not begun, and asks for no more: the chunk is not used any more. A failure does
  /// the same.
  void Cancel();

  /// All layers are there.
  bool complete() const { return num_missing() == 0; }
  /// How many layers are not there yet.
  int32_t num_missing() const { return missing_.load(std::memory_order_acquire); }
  bool failed() const;
  /// Whether it failed because the tier had no room for its reads, which says nothing about the entry.
  bool refused() const;
  /// How many layers have not been asked for.
  int32_t num_unasked() const { return unasked_.load(std::memory_order_acquire); }

 private:
  struct Layer {
    bool asked = false;
    bool arrived = false;
    ReadPriority priority;       // of the first of those that asked
    std::optional<ReadId> read;  // once the tier has it
  };

  void LayerDone(int32_t layer, const absl::Status& status);

  /// What is to be done once the lock is released, as it calls the tier, and may close a file. Declared
  /// before the lock.
  struct Ended {
    std::shared_ptr<LowerTierEntry> source;
    std::vector<ReadId> reads;  // that are not needed any more
    ~Ended();
  };
  /// Nothing more is read, whatever was asked for.
  void End(Ended& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ChunkKey key_;
  const Tier tier_;
  const std::shared_ptr<ChunkKv> kv_;
  ReadMeter& meter_;
  std::atomic<int32_t> missing_;  // layers
  std::atomic<int32_t> unasked_;  // layers

  mutable absl::Mutex mutex_;
  std::shared_ptr<LowerTierEntry> source_ ABSL_GUARDED_BY(mutex_);  // null: nothing more is read
  std::vector<Layer> layers_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first
  bool refused_ ABSL_GUARDED_BY(mutex_) = false;  // why
};

/// The reads of one prompt's lookups. They begin when the prompt is ready for them, layer by layer over all
/// chunks. So the header of an entry does not wait behind the layers of another entry, and what is needed
/// first is read first. Used by one thread.
class PromptReads {
 public:
  /// `reader`: from ChunkStore::NewPrompt.
  explicit PromptReads(Reader reader) : reader_(reader) {}
  PromptReads(const PromptReads&) = delete;
  PromptReads& operator=(const PromptReads&) = delete;

  Reader reader() const { return reader_; }
  void Add(std::shared_ptr<ArrivingKv> arriving) { arriving_.push_back(std::move(arriving)); }

  /// Asks for all layers of all entries, layer by layer.
  void AskForAll();

  /// Until when the lookups of this prompt may wait for tiers across the network: `budget` after the first
  /// call, for all of them together.
  absl::Time LookupDeadline(absl::Duration budget);

 private:
  const Reader reader_;
  std::optional<absl::Time> lookup_deadline_;
  std::vector<std::shared_ptr<ArrivingKv>> arriving_;
};

}  // namespace kvblend::store
