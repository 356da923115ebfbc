// Chunks in a folder on local disk: one kvb1 file each (engine/store/format/entry_format.h).
//
//   auto tier = DiskTier::Open({.path = "/var/lib/kvblend/chunks", .quota_bytes = int64_t{100} << 30});
//   (*tier)->Put(address, *kv, {.label = "doc 7"});
//   auto entries = (*tier)->OpenEntries(keys, deadline);
//   (*entries[0])->ReadLayer(0, buffer, {prompt, 0}, [](absl::Status status) { ... });
//
// Durable: when Put returns OK, the entry survives the death of the process and of the machine; whatever dies
// in between leaves the entry whole or leaves none.
// Trusted only when checked: the header's checksum and key when an entry is opened, a layer's checksums
// before its reader hears OK. What does not match is moved to quarantine/, counted, and is a miss from then
// on. Never in the way: a full or failing disk costs cached chunks, a counter and one line in the log.
//
// Threads: every method may be called from any thread. The tier must outlive the entries it gave out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/once_a_minute.h"
#include "engine/api/chunk_info.h"
#include "engine/api/options.h"
#include "engine/store/disk/disk_entry.h"
#include "engine/store/disk/disk_health.h"
#include "engine/store/disk/disk_index.h"
#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/disk_tier_stats.h"
#include "engine/store/disk/entry_files.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/disk/read_queue.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

class DiskTier final : public LowerTier {
 public:
  struct Options {
    std::string path;         // made if need be, with the folders above it
    int64_t quota_bytes = 0;  // all entries' files together
    /// What entries leave free on the disk for others: rather than going below, they make room.
    int64_t min_free_bytes = int64_t{64} << 20;
    int64_t max_quarantined_files = 64;     // beyond it, damaged entries are deleted
    int64_t max_held_files = 128;           // open for reads to come; the rest is opened for each read
    int32_t num_scan_threads = 8;           // reading headers when opened
    NamespaceQuotas namespace_quotas = {};  // of quota_bytes
    ReadQueue::Options reads = {};
    FileSystem* fs = &PosixFileSystem();          // must outlive the tier
    std::function<absl::Time()> now = absl::Now;  // thread-safe; may not call back into the tier
  };

  /// Takes the folder for this process, deletes what was half written, and builds the index from the headers.
  /// kInvalidArgument naming the option. kFailedPrecondition: another server has the folder; names both.
  /// Otherwise what the file system says of the folder. Damaged entries are no error.
  static absl::StatusOr<std::unique_ptr<DiskTier>> Open(Options options);
  /// Reads that wait are cancelled, those that run are waited for. REQUIRES: no other call is under way.
  ~DiskTier() override;

  Tier tier() const override { return Tier::kDisk; }
  bool durable() const override { return true; }

  // --- data path ------------------------------------------------------------------------------------------

  /// Stores a chunk durably; OK at once when it is there. Makes room by giving up the entries that save the
  /// least computing per byte.
  /// kInvalidArgument: `kv` isn't of the address's shape, a bad cost or too long a label. kResourceExhausted:
  /// does not fit beside what is pinned, or the disk is full. kUnavailable: the disk fails. On error nothing
  /// of the entry is left.
  absl::Status Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) override;

  /// Blocks for one small read of each, whatever the deadline: a disk that hangs is found by reading, not by
  /// opening. kNotFound. kDataLoss: it is damaged, and now in quarantine. kInternal, kUnavailable: it can't
  /// be read now. Beyond max_held_files, an entry that goes meanwhile can't be read any more.
  std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> OpenEntries(absl::Span<const ChunkKey> keys,
                                                                           absl::Time deadline) override;
  std::vector<std::optional<ContentMatch>> FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                         absl::Time deadline) const override;

  // --- for operators, and placement -----------------------------------------------------------------------

  /// Is no hit.
  std::optional<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const override;
  bool Contains(const ChunkKey& key) const override;
  void ForgetIfGone(const ChunkKey& key) override;
  std::vector<ChunkInfo> List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                              int64_t limit) const override;
  /// Pinned entries too, and those that cannot be read. Entries that are open stay readable. Whether there
  /// was one; when true, it does not come back. kUnavailable: no lookup finds it now, but its file could not
  /// be removed; another call tries again, and now and then a Put does.
  absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) override;
  std::vector<absl::StatusOr<bool>> EraseAll(NamespaceFilter filter,
                                             absl::Span<const ChunkKey> keys) override;
  /// kNotFound. kResourceExhausted, kUnavailable: the disk is full or fails; nothing has changed.
  absl::Status SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) override;

  void SetUsable(const UsableEntries& usable) override;
  void LimitNamespaces(const std::map<std::string, int64_t>& bytes) override;
  std::optional<int64_t> RoomOf(const std::string& tenant_namespace) const override;

  void SetEvictionListener(EvictionListener listener) override { eviction_listener_ = std::move(listener); }

  DiskTierStats Stats() const;
  TierStats Report() const override;

 private:
  using Index = internal::DiskIndex;
  class Claim;

  explicit DiskTier(Options options);
  absl::Status Start();
  absl::Status MakeOwnFolders();

  static absl::Status AsUnavailable(const absl::Status& status);

  // Writing.
  absl::Status PutClaimed(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options);
  /// Sets bytes of the quota aside. kResourceExhausted: does not fit. kUnavailable: what would have had to go
  /// can't be removed.
  absl::Status ReserveRoom(const std::string& tenant_namespace, int64_t bytes);
  absl::Status MakeRoomOnDisk(int64_t bytes);
  /// For when somebody has removed folders under the tier: makes them anew, and forgets the entries that went
  /// with them. kFailedPrecondition: the folder is no longer the one that was opened.
  absl::Status MakeFoldersAnew();
  struct Deletion {
    int64_t num_deleted = 0;
    int64_t num_failed = 0;
    absl::Status failure;  // the first
  };
  /// Removes their files, and tells the listener. What can't be removed is an entry again, and so is the rest
  /// once kMaxFailedDeletions could not.
  Deletion Delete(const std::vector<Index::Victim>& victims);
  /// Erase of each. REQUIRES: the caller has a claim on each, and none is there twice.
  std::vector<absl::StatusOr<bool>> EraseClaimed(NamespaceFilter filter, absl::Span<const ChunkKey> keys);
  void WarnOfUndeleted(const absl::Status& status);
  /// Now and then lets a few files go that could not be removed.
  void RetryDeletions();

  // Reading. A generation tells an entry from earlier and later ones of the same key.
  absl::StatusOr<std::shared_ptr<LowerTierEntry>> OpenEntry(const ChunkKey& key);
  /// `goes`: its file is about to be removed.
  absl::StatusOr<std::shared_ptr<LowerTierEntry>> OpenFile(const ChunkKey& key, uint64_t generation,
                                                           bool pinned, bool goes);
  absl::StatusOr<std::shared_ptr<File>> OpenAgain(const ChunkKey& key, uint64_t generation);
  /// Its file is not there. Unless somebody of this process is at it, it is no entry any more.
  void ForgetVanished(const ChunkKey& key, uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Counts and acts on the outcome of a read.
  void ReportRead(const ChunkKey& key, uint64_t generation, const absl::Status& status, int64_t bytes);
  void Quarantine(const ChunkKey& key, uint64_t generation, const absl::Status& reason);
  std::optional<Index::Slot> FindGeneration(const ChunkKey& key, uint64_t generation) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const internal::DiskPaths paths_;
  FileSystem& fs_;
  internal::EntryFiles files_;
  EvictionListener eviction_listener_;
  std::unique_ptr<FileLock> lock_;
  internal::DiskHealth read_health_;
  internal::DiskHealth write_health_;
  internal::HeldFiles held_files_;

  // No IO, and nothing is called, while it is held, but for options_.now.
  mutable absl::Mutex mutex_;
  Index index_ ABSL_GUARDED_BY(mutex_);
  struct LeftAlone {
    bool pinned = false;
    std::string tenant_namespace;
    int64_t held_bytes = 0;  // of the index; 0: it was never an entry of this process
  };
  /// An entry is none any more, though its file is still there.
  void LeaveAlone(Index::Slot slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Its file is gone, or an entry's again.
  void ForgetLeftAlone(const ChunkKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What is not in the index though its file is there: entries that could not be read at the start or are
  /// of a newer version, and those that were erased or damaged and whose files could not be removed.
  absl::flat_hash_map<ChunkKey, LeftAlone> left_alone_ ABSL_GUARDED_BY(mutex_);
  std::deque<ChunkKey> undeleted_ ABSL_GUARDED_BY(mutex_);  // of these, to be tried again in this order
  absl::Time last_retry_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  OnceAMinute warn_undeleted_ ABSL_GUARDED_BY(mutex_);
  DiskTierStats stats_ ABSL_GUARDED_BY(mutex_);  // without what index_ and files_ know
  OnceAMinute warn_short_of_space_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<ReadQueue> reads_;  // last: its callbacks use everything above
};

}  // namespace kvblend::store
