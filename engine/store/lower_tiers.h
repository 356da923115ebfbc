// The tiers below host memory as one: the disk, and below it Redis.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/once_a_minute.h"
#include "engine/api/chunk_info.h"
#include "engine/store/erasures.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/lower_tier.h"
#include "engine/store/write_behind.h"

namespace kvblend::store {

/// Asks its tiers in order, and writes to each of them in the background, so that a slow one does not hold up
/// the others. An entry that a tier could not read is not asked for there for a while. An entry that a tier
/// evicts, and that was asked for more than once, is written to those tiers below that do not have it.
/// Thread-safe.
class LowerTiers {
 public:
  /// How long an entry that a tier failed to read is not asked for there.
  static constexpr absl::Duration kRetryUnreadable = absl::Minutes(1);
  /// How often a tier hears of uses of an entry within its lifetime. A tier that prolongs an entry once half
  /// of that has passed then never has one, while it is used, with less than 3/8 of it left.
  static constexpr int32_t kUsesPerLifetime = 8;
  /// Entries that are read at once to be written further down. Beyond it, what is evicted is gone.
  static constexpr int32_t kMaxDemotions = 4;

  /// `tiers`: in the order in which they are asked. `memory` outlives them. `now`: thread-safe.
  LowerTiers(std::vector<std::unique_ptr<LowerTier>> tiers, HostMemory& memory,
             int64_t max_queued_write_bytes, std::function<absl::Time()> now);
  /// Finishes what is on its way to the tiers.
  ~LowerTiers();

  bool empty() const { return levels_.empty(); }
  /// Whether one of them is durable.
  bool durable() const;

  // --- reading --------------------------------------------------------------------------------------------

  /// For each key, the entry of the first tier in which it can be opened; null: a miss.
  std::vector<std::shared_ptr<LowerTierEntry>> Open(absl::Span<const ChunkKey> keys, absl::Time deadline);
  /// For each content key, the match of the first tier that has one.
  std::vector<std::optional<ContentMatch>> FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                         absl::Time deadline) const;
  /// What is erased, and read to be kept elsewhere.
  Erasures& erasures() { return erasures_; }
  /// Open leaves this tier's entry out for kRetryUnreadable, or until it is written again.
  void MarkUnreadable(const ChunkKey& key, Tier tier);

  // --- writing --------------------------------------------------------------------------------------------

  /// Queues an entry for every tier that does not have it; when `pinned`, to be pinned where a tier can. What
  /// a tier has stays as it is there, pinned or not.
  void Write(const ChunkAddress& address, const std::shared_ptr<const ChunkKv>& kv, bool pinned,
             const LowerTier::PutOptions& options);
  /// As Write, and pins the entry in the durable tier also if that has it already.
  void WriteAndPin(const ChunkAddress& address, const std::shared_ptr<const ChunkKv>& kv,
                   const LowerTier::PutOptions& options);
  /// Has the durable tier look whether this entry is there still: Write queues it if somebody has removed it.
  void ForgetIfGone(const ChunkKey& key);
  /// For each key, whether one of the tiers that are not durable lacks it, as LowerTier::Lack says.
  std::vector<bool> Lack(absl::Span<const ChunkKey> keys, const KvFormat& format);
  /// Pins or unpins the entry in the durable tier, if that has it or is to have it, in the background after
  /// what is queued of it; WaitUntilDurable waits for that too. If the tier refuses or fails, the log says
  /// so.
  void QueuePin(const ChunkAddress& address, bool pinned);
  /// The same for an entry of which something is on its way to the durable tier; nothing for others.
  void AmendPin(const ChunkKey& key, bool pinned);
  /// As WriteBehind says, of the durable tier.
  absl::flat_hash_map<ChunkKey, bool> QueuedPins() const;
  /// Tells the tiers whose entries go by time that this one is used, in the background. Cheap, but for the
  /// tiers' work; once per use_interval() is often enough.
  void QueueUse(const ChunkAddress& address);
  /// InfiniteDuration: no tier wants to know.
  absl::Duration use_interval() const { return use_interval_; }
  /// Drops what is queued of entries for which `unwanted` is true; waits for what is under way.
  void CancelWrites(absl::FunctionRef<bool(const ChunkAddress&)> unwanted);
  /// Waits until no tier has this entry in its queue. kDeadlineExceeded.
  absl::Status WaitUntilWritten(const ChunkKey& key, absl::Time deadline);
  /// Waits until the durable tier has this entry. kFailedPrecondition: there is none. kDeadlineExceeded: not
  /// by then. Otherwise why it could not be written.
  absl::Status WaitUntilDurable(const ChunkKey& key, absl::Time deadline);
  /// kDeadlineExceeded.
  absl::Status FlushWrites(absl::Time deadline);
  /// Sums over the tiers.
  WriteBehind::Stats write_stats() const;
  /// In the order of lookups.
  std::vector<TierStats> Report() const;
  /// The first tier's that has one; null: none. May be used as long as this.
  ReplicaBoard* replica_board() const;

  // --- for operators --------------------------------------------------------------------------------------

  /// Of the first tier that has the entry.
  std::optional<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const;
  std::vector<std::optional<ChunkInfo>> StatAll(NamespaceFilter filter,
                                                absl::Span<const ChunkKey> keys) const;
  /// The first `limit` entries after `after`, of host memory, whose list is `host`, and of all tiers; of an
  /// entry that several of them have, what the first of them says.
  std::vector<ChunkInfo> List(NamespaceFilter filter, const std::optional<ListPlace>& after, int64_t limit,
                              std::vector<ChunkInfo> host) const;
  /// In all tiers, also after one that could not. For each key, whether there was one. kUnavailable: a tier
  /// could not erase it or say whether it has it; logged as well.
  std::vector<absl::StatusOr<bool>> EraseAll(NamespaceFilter filter, absl::Span<const ChunkKey> keys);
  /// In the tiers that pin. kNotFound: it is in none of them.
  absl::Status SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned);
  /// In the tiers that count namespaces.
  void LimitNamespaces(const std::map<std::string, int64_t>& bytes);
  /// In the tier that outlives the process; none: there is no such tier.
  std::optional<int64_t> RoomOf(const std::string& tenant_namespace) const;

 private:
  struct Level {
    std::unique_ptr<LowerTier> tier;
    std::unique_ptr<WriteBehind> writes;  // last: writes to the tier
  };
  struct Unreadable {
    Tier tier;
    absl::Time since;
  };

  class Demotion;

  void Demote(size_t level, std::shared_ptr<LowerTierEntry> entry, int64_t frequency);
  bool IsUnreadable(const ChunkKey& key, Tier tier) ABSL_LOCKS_EXCLUDED(mutex_);
  /// Whether a chunk that could not be erased everywhere gets a line in the log.
  bool WarnsOfErasure() ABSL_LOCKS_EXCLUDED(mutex_);

  HostMemory& memory_;
  const std::function<absl::Time()> now_;
  Erasures erasures_;
  std::atomic<int32_t> demotions_{0};  // under way
  std::vector<Level> levels_;
  absl::Duration use_interval_ = absl::InfiniteDuration();  // set by the constructor

  absl::Mutex mutex_;
  OnceAMinute warn_erasure_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<ChunkKey, Unreadable> unreadable_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::store
