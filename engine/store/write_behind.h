// Writes new entries to a lower tier in the background, and tells it of those that are used.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

/// One thread and a queue bounded in bytes. What does not fit into the queue is not written, which only costs
/// a later miss. Thread-safe.
class WriteBehind {
 public:
  struct Stats {
    int64_t queued_entries = 0;  // now, the one being written included
    int64_t queued_bytes = 0;
    int64_t written = 0;  // since start
    int64_t dropped = 0;  // since start: the queue was full
    int64_t failed = 0;   // since start: the tier refused
  };

  /// `tier` must outlive this.
  WriteBehind(LowerTier& tier, int64_t max_queued_bytes);
  /// Writes what is queued first; Flush with a deadline before, and Cancel what is left then, to bound that.
  ~WriteBehind();

  /// Queues an entry, to be pinned there when `pinned`; drops it when the queue is full. Of an entry that is
  /// on its way already only the pin is added.
  void Enqueue(const ChunkAddress& address, std::shared_ptr<const ChunkKv> kv, bool pinned,
               LowerTier::PutOptions options);

  /// Pins or unpins an entry of the tier, after what is queued of it.
  void EnqueuePin(const ChunkAddress& address, bool pinned);
  /// As EnqueuePin, where something of this entry is queued or under way; whether it is.
  bool AmendPin(const ChunkKey& key, bool pinned);
  /// The entries that are pinned or unpinned by what is queued and under way, and how they are afterwards.
  absl::flat_hash_map<ChunkKey, bool> QueuedPins() const;

  /// Tells the tier that an entry is used, unless that is about to be written, when its lifetime begins
  /// anyway. Dropped when kMaxQueuedUses wait, which only costs a later miss.
  void EnqueueUse(const ChunkAddress& address);

  /// Drops what is queued of entries for which `unwanted` is true; waits for the end of what is under way.
  void Cancel(absl::FunctionRef<bool(const ChunkAddress&)> unwanted);

  /// Waits until this entry is no longer queued and says what became of it, as long as that is remembered
  /// (the last kRememberedFailures failures are). kDeadlineExceeded.
  absl::Status WaitFor(const ChunkKey& key, absl::Time deadline);
  /// Waits until nothing is queued, uses included. kDeadlineExceeded.
  absl::Status Flush(absl::Time deadline);

  Stats stats() const;

  static constexpr int32_t kRememberedFailures = 256;
  static constexpr size_t kMaxQueuedUses = 10'000;

 private:
  struct Item {
    ChunkAddress address;
    std::shared_ptr<const ChunkKv> kv = nullptr;  // null: the entry is there, and has only `pinned` to be set
    int64_t bytes() const { return kv == nullptr ? 0 : kv->size_bytes(); }
    std::optional<bool> pinned = std::nullopt;  // none: what the tier has stays as it is
    LowerTier::PutOptions options = {};
  };

  void Run();
  void TellUse() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RememberFailure(const ChunkKey& key, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetFailure(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What waits for this key, at most one; null: nothing.
  Item* FindQueued(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsQueued(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void QueuePin(const ChunkAddress& address, bool pinned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LowerTier& tier_;
  const int64_t max_queued_bytes_;

  mutable absl::Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<ChunkAddress> writing_ ABSL_GUARDED_BY(mutex_);
  bool writing_entry_ ABSL_GUARDED_BY(mutex_) = false;  // whether that is an entry, and more than its pin
  std::optional<bool> writing_pin_ ABSL_GUARDED_BY(mutex_);
  std::deque<ChunkAddress> uses_ ABSL_GUARDED_BY(mutex_);
  std::optional<ChunkAddress> telling_ ABSL_GUARDED_BY(mutex_);  // whose use the tier is being told of
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ChunkKey, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::deque<ChunkKey> failure_order_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace kvblend::store
