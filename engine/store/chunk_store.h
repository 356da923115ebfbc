// The chunk store: the KV of document chunks by content address, kept in host memory within a byte budget,
// and in the tiers below it when there are some.
//
//   auto result = store->LookupOrReserve(store::AddressOf(identity));
//
// gives one of three: a ChunkHandle, whose layers AcquireLayer hands out; a Reservation, with the duty to
// compute the chunk and Commit it; or BeingComputed, when somebody else has that duty.
//
// Threads: every method may be called from any thread. The store must outlive what it gave out.
//
// Namespaces: a key contains its tenant namespace, so a lookup can't reach another tenant's entries. The
// methods for operators take a namespace and act as if nothing else existed; kAllNamespaces is for the
// deployment's owner.
//
// The lower tiers: what is inserted is also written there, in the background. What a lookup finds only there
// becomes an entry in host memory at once, and its layers arrive while the caller computes with the first
// ones. An entry that can't be read is a miss from then on; nothing that was read is used unchecked. A tier
// whose entries go by time hears, in the background, of those that are used from memory.
//
// Placement: an entry is evicted as EvictionQueue says, within its namespace's quota first. What is evicted
// from memory, or read from a lower tier other than the first, and was asked for more than once or by
// somebody who stores it, is written to those tiers that do not have it.
//
// Memory: entries, erased ones that handles still hold included, never exceed the byte budget. KV that is
// being computed is not counted until it is inserted; callers bound how much of it there is. KV on its way to
// a lower tier may outlive its entry, by at most max_queued_write_bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/api/chunk_catalog.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/store/chunk_handle.h"
#include "engine/store/chunk_index.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/lower_tier.h"
#include "engine/store/lower_tiers.h"
#include "engine/store/read_meter.h"

namespace kvblend::store {

struct InsertOptions {
  double compute_cost_seconds =
      0;  // how long computing it again would take, measured or estimated; finite, >= 0
  bool pinned = false;
  bool on_purpose = false;  // a client asked to store it; false: it is left over from a prompt
  std::string label = {};   // free text shown by List
};

class ChunkStore final : public ChunkCatalog, private internal::Lender {
 public:
  struct Options {
    int64_t byte_budget = int64_t{4} << 30;
    HostMemory* memory = &Heap();    // of entries that come from lower tiers; must outlive the store
    int64_t pinned_byte_limit = -1;  // what operators may pin, at most byte_budget; -1: half of it
    NamespaceQuotas namespace_quotas = {};
    int64_t max_queued_write_bytes = int64_t{256} << 20;  // on their way to each lower tier
    absl::Duration lookup_budget =
        absl::Milliseconds(50);                   // one prompt's waiting for lookups across the network
    absl::Duration pin_wait = absl::Seconds(10);  // of Pin and Unpin for the chunk's own write
    std::function<absl::Time()> now = absl::Now;  // thread-safe; may not call back into the store
  };

  /// What an entry counts against the budget besides its KV: bookkeeping, generously, so that chunks without
  /// tokens are bounded as well.
  static constexpr int64_t kEntryOverheadBytes = 1024;

  /// `lower`: in the order in which lookups ask them. kInvalidArgument naming the option.
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Create(
      Options options, std::vector<std::unique_ptr<LowerTier>> lower = {});
  /// Finishes the writes that are on their way to the lower tiers.
  ~ChunkStore() override;

  // --- data path ------------------------------------------------------------------------------------------

  /// For the PromptReads of one prompt: the reads of earlier prompts go first.
  Reader NewPrompt() { return NewReader(ReadFor::kPrompt); }

  /// A handle per key, or nothing, in the order of `keys`. What has to be read for the handles is added to
  /// `reads`, and begins once layers are asked for there; without `reads`, it begins at once.
  /// When an entry's last handle goes before any of its layers was asked for, the entry goes too; else the
  /// rest of its layers is asked for. Keys that are looked up together cost a tier across the network few
  /// round trips; all lookups of a prompt together wait for such tiers at most for lookup_budget.
  std::vector<std::optional<ChunkHandle>> Lookup(absl::Span<const ChunkKey> keys,
                                                 PromptReads* reads = nullptr);

  /// As Lookup, but does not count as a use of what it finds: neither as a hit nor as a request. Entries that
  /// are only in lower tiers are on their way into memory when this returns, behind the reads for whom
  /// `purpose` lets go first.
  std::vector<std::optional<ChunkHandle>> Prefetch(absl::Span<const ChunkKey> keys,
                                                   ReadFor purpose = ReadFor::kPrefetch);

  /// An entry of the same chunk whatever its anchor; of several, the best ContentMatch.
  std::vector<std::optional<ChunkHandle>> LookupAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                          PromptReads* reads = nullptr);

  /// The entry, or the duty to compute it, or that someone else has the duty. An entry that a lower tier does
  /// not have (it was full, or has evicted it, or another server stored the entry in a tier below) is written
  /// there: at once when all of it is in memory, else when a handle goes after all layers have arrived.
  /// kFailedPrecondition when it can never be stored: larger than the budget. kResourceExhausted when it
  /// could not be stored however much were evicted: larger than the budget without what operators pinned, or
  /// than its namespace's quota. kInvalidArgument: bad format.
  absl::StatusOr<ReserveResult> LookupOrReserve(const ChunkAddress& address);

  /// Stores a chunk; needs no reservation. Evicts idle entries to make room.
  /// When the key is already resident its entry is returned (and pinned, if so asked) and `kv` dropped: equal
  /// key, equal KV. What is asked to be pinned is pinned in the durable tier too, in the background, also if
  /// that has it already. On error the store is unchanged.
  /// kResourceExhausted: does not fit beside what is pinned or in use, or over the limit of pinned bytes;
  /// names the bytes. kInvalidArgument: `kv` isn't of the address's shape, or a bad cost.
  absl::StatusOr<ChunkHandle> Insert(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                     const InsertOptions& options);

  /// Waits until a chunk that was inserted is in the durable tier: it will be there after a restart.
  /// kFailedPrecondition: there is none. kDeadlineExceeded: not by then. Otherwise why it could not be
  /// written.
  absl::Status WaitUntilDurable(const ChunkKey& key, absl::Time deadline) {
    return lower_.WaitUntilDurable(key, deadline);
  }
  bool has_lower_tiers() const { return !lower_.empty(); }
  /// Waits until nothing is on its way to the lower tiers. kDeadlineExceeded.
  absl::Status FlushWrites(absl::Time deadline) { return lower_.FlushWrites(deadline); }
  /// Drops what waits to be written to the lower tiers.
  void DropWrites() {
    lower_.CancelWrites([](const ChunkAddress&) { return true; });
  }

  // --- for operators: see ChunkCatalog ---------------------------------------------------------------------

  absl::StatusOr<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const override;
  std::vector<std::optional<ChunkInfo>> StatAll(NamespaceFilter filter,
                                                absl::Span<const ChunkKey> keys) const override;
  std::vector<bool> AreDurable(NamespaceFilter filter, absl::Span<const ChunkKey> keys) override;
  /// For each key, whether storing the chunk once more would do nothing: it is in the durable tier, which
  /// looks whether somebody has removed it, or where there is no such tier, anywhere; no other tier that
  /// answers lacks it; and it fits into memory, without which nobody can use it. May block as reading does.
  /// `format`: of the chunks.
  std::vector<bool> AreStored(NamespaceFilter filter, absl::Span<const ChunkKey> keys,
                              const KvFormat& format);
  /// Whether memory could hold the chunk if all else were evicted. kFailedPrecondition with the bytes.
  absl::Status CheckFits(const KvFormat& format, int32_t num_tokens) const;
  int64_t RoomOf(const std::string& tenant_namespace) const override;
  absl::StatusOr<ChunkPage> List(NamespaceFilter filter, std::string_view page_token,
                                 int32_t page_size) const override;
  absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) override;
  Cleared Clear(NamespaceFilter filter) override;
  absl::Status Pin(NamespaceFilter filter, const ChunkKey& key) override {
    return SetPinned(filter, key, true);
  }
  absl::Status Unpin(NamespaceFilter filter, const ChunkKey& key) override {
    return SetPinned(filter, key, false);
  }
  void LimitNamespaces(const std::map<std::string, int64_t>& bytes) override;
  /// As Pin, for an entry in host memory, but without waiting for lower tiers: it is pinned in memory at
  /// once, and in lower tiers later (WaitUntilDurable waits for that too). If all of it is in memory, it is
  /// first written to those that do not have it. kNotFound: no such entry. kResourceExhausted: too much is
  /// pinned.
  absl::Status PinBehind(NamespaceFilter filter, const ChunkKey& key);

  StoreStats Stats() const;
  /// The figures of each lower tier, in the order in which lookups ask them.
  std::vector<TierStats> LowerTierStats() const { return lower_.Report(); }
  /// The board on which servers that share a lower tier exchange messages; null: none. Valid as long as the
  /// store.
  ReplicaBoard* replica_board() const { return lower_.replica_board(); }
  /// How fast the lower tiers are.
  const ReadMeter& read_meter() const { return read_meter_; }

 private:
  using Entry = internal::Entry;
  /// What a method leaves for after it has released the lock. Declared before the lock, so that it goes
  /// after.
  struct Leftovers {
    internal::ChunkIndex::Removed removed;                // to be freed
    std::vector<std::shared_ptr<ArrivingKv>> unfinished;  // nobody else will ask for the rest of their layers
    ~Leftovers();
  };
  /// While it lives, entries are opened in the lower tiers to be taken into memory. What was erased meanwhile
  /// is not, and what was pinned or unpinned meanwhile is as it was set last.
  struct Fetching {
    explicit Fetching(ChunkStore& of);
    ~Fetching();
    ChunkStore& store;
    const Erasures::Watch erasures;
    /// Which entries the disk may have told of otherwise than they are, or are to be, pinned. Guarded by the
    /// store's mutex.
    absl::flat_hash_map<ChunkKey, bool> pins;
  };

  ChunkStore(Options options, std::vector<std::unique_ptr<LowerTier>> lower);

  // Lender
  void Return(Entry* entry) override;
  absl::StatusOr<ChunkHandle> Commit(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                     const InsertOptions& options) override;
  void Abandon(const ChunkKey& key) override;

  Reader NewReader(ReadFor purpose) {
    return {.purpose = purpose, .turn = next_turn_.fetch_add(1, std::memory_order_relaxed)};
  }
  /// `is_use`: for a prompt that computes with it.
  std::vector<std::optional<ChunkHandle>> Find(absl::Span<const ChunkKey> keys, PromptReads& reads,
                                               bool is_use);
  /// The resident entry; one that could not be read is taken out.
  Entry* FindUsable(const ChunkKey& key, Leftovers& leftovers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Tells the lower tiers now and then that the entry is used: they are not asked while memory has it.
  void NoteUse(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What is missing of the entry is added to `reads`.
  ChunkHandle HandOut(Entry* entry, PromptReads& reads, bool is_use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Looks in the lower tiers for what is missing in `found`, which is in the order of `keys`.
  void Fetch(absl::Span<const ChunkKey> keys, PromptReads& reads, bool is_use,
             std::vector<std::optional<ChunkHandle>>& found);
  /// `fetching`: from before the source was opened.
  std::optional<ChunkHandle> Admit(std::shared_ptr<LowerTierEntry> source, const Fetching& fetching,
                                   PromptReads& reads, bool is_use);

  absl::StatusOr<ChunkHandle> InsertOrCommit(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                             const InsertOptions& options, bool is_commit);
  absl::Status AddEntry(std::unique_ptr<Entry>& entry, Leftovers& leftovers)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Queues it for the lower tiers that do not have it, when all of it is here. `pin`: somebody asks for it
  /// to be pinned, so tiers that have it pin it too.
  void OfferToLower(const Entry& entry, bool pin = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Erase of each, in the order of `keys`.
  std::vector<absl::StatusOr<bool>> EraseAll(NamespaceFilter filter, absl::Span<const ChunkKey> keys);
  absl::Status SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned);

  const Options options_;
  ReadMeter read_meter_;  // outlives the reads of lower_
  std::atomic<uint64_t> next_turn_{1};
  LowerTiers lower_;  // outlives the entries, which take back their reads

  absl::Mutex pin_mutex_;  // held by Pin and Unpin while tiers and then memory change, before mutex_
  // Nothing is called, waited for or freed while mutex_ is held, but for options_.now and lower_'s Write,
  // WriteAndPin, QueuePin, AmendPin, QueuedPins, QueueUse, MarkUnreadable and erasures, which do not wait;
  // see Leftovers. Whoever changes a pin in memory has lower_ queue it before mutex_ is released, so that the
  // disk ends up like memory, whatever overtakes what.
  mutable absl::Mutex mutex_;
  internal::ChunkIndex index_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<ChunkKey> reserved_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Fetching*> fetches_ ABSL_GUARDED_BY(mutex_);  // under way
  StoreStats stats_ ABSL_GUARDED_BY(mutex_);  // without what the index and the lower tiers report
};

}  // namespace kvblend::store
