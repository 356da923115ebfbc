// A lower tier in memory, with a clock of its own: layers arrive when the test says so, and reads and writes
// fail where the test wants them to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/lower_tier.h"

namespace kvblend::test_support {

/// What survives the tier, as files do: several tiers may be made on it one after the other. Thread-safe.
class MemoryDisk {
 public:
  struct Stored {
    store::EntryHeader header;
    std::vector<std::byte> bytes;  // layers in order
    int64_t frequency = 0;         // as PutOptions had it
    bool pinned = false;
  };

  /// Reads wait until Deliver or DeliverAll instead of being answered at once.
  void HoldReads(bool hold);
  /// Answers the next read in order of priority. Whether there was one.
  bool Deliver();
  void DeliverAll();
  int64_t waiting_reads() const;
  /// The read that Deliver would answer; none waits: nothing.
  std::optional<store::ReadPriority> next_read() const;

  /// Tells the tier's eviction listener, and forgets the entry. REQUIRES: it is there, and one tier is.
  void Evict(const ChunkKey& key, int64_t frequency);

  /// Called for every read; an error fails the read, and with kDataLoss the entry is lost.
  std::function<absl::Status(const ChunkKey& key, int32_t layer)> read_fault;
  /// Called for every Put.
  std::function<absl::Status(const ChunkKey& key)> write_fault;

  /// Called for every entry that is to be erased.
  std::function<absl::Status(const ChunkKey& key)> erase_fault;
  /// Called for every pin.
  std::function<absl::Status(const ChunkKey& key)> pin_fault;
  /// Called when entries have been opened, before anybody has them.
  std::function<void()> after_open;

  /// What the tier says of its entries.
  absl::Duration lifetime = absl::InfiniteDuration();

  /// Keys that were asked for by Stat and StatAll.
  mutable std::atomic<int64_t> stat_calls{0};
  /// Entries that were told to do something after their tier was gone.
  std::atomic<int64_t> calls_without_tier{0};

  int64_t entries() const;
  bool Contains(const ChunkKey& key) const;
  bool IsPinned(const ChunkKey& key) const;
  int64_t FrequencyOf(const ChunkKey& key) const;
  /// What NoteUse told, in order.
  std::vector<ChunkKey> uses() const;

 private:
  friend class MemoryLowerTier;
  friend class MemoryLowerEntry;
  struct Read {
    store::ReadPriority priority;
    store::ReadId id;
    std::function<absl::Status()> copy;
    std::shared_ptr<absl::AnyInvocable<void(absl::Status)>> done;
  };

  void Submit(Read read);
  void RaiseRead(store::ReadId id, store::ReadPriority priority);
  void CancelRead(store::ReadId id);

  std::atomic<int64_t> tiers_{0};
  std::function<void(const std::shared_ptr<Stored>& stored, int64_t frequency)> listener_;
  mutable absl::Mutex mutex_;
  std::map<ChunkKey, std::shared_ptr<Stored>> entries_ ABSL_GUARDED_BY(mutex_);
  std::vector<Read> reads_ ABSL_GUARDED_BY(mutex_);
  std::vector<ChunkKey> uses_ ABSL_GUARDED_BY(mutex_);
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  store::ReadId next_id_ ABSL_GUARDED_BY(mutex_) = 1;
};

/// `tier`: what it says it is; only the disk is durable.
std::unique_ptr<store::LowerTier> MakeMemoryLowerTier(std::shared_ptr<MemoryDisk> disk,
                                                      Tier tier = Tier::kDisk);

}  // namespace kvblend::test_support
