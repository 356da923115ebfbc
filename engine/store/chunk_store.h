// The chunk store: the KV of document chunks by content address, kept in host memory within a byte budget,
// and in the tiers below it when there are some.
//
//   auto result = store->LookupOrReserve(store::AddressOf(identity));
//
// gives one of three: a ChunkHandle, whose layers AcquireLayer hands out; a Reservation, with the duty to
// compute the chunk and Commit it; or a Pending, to Wait for whoever has that duty.
//
// Threads: every method may be called from any thread. The store must outlive what it gave out.
//
// Namespaces: a key contains its tenant namespace, so a lookup can't reach another tenant's entries. The
// methods for operators take a namespace and act as if nothing else existed; kAllNamespaces is for the
// deployment's owner.
//
// The lower tiers: what is inserted is also written there, behind the caller. What a lookup finds only there
// becomes an entry in host memory at once, and its layers arrive while the caller computes with the first
// ones. An entry that can't be read is a miss from then on; nothing that was read is used unchecked.
//
// Placement: an entry is evicted as EvictionQueue says, within its namespace's quota first. What is evicted
// from memory, or read from a lower tier but the first, and was asked for more than once, is written to the
// tiers that have it not.
//
// Memory: entries, erased ones that handles still hold included, never exceed the byte budget. KV that is
// being computed is not counted until it is inserted; callers bound how much of it there is. KV on its way to
// a lower tier may outlive its entry, by at most max_queued_write_bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/api/chunk_catalog.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/store/chunk_entry.h"
#include "engine/store/chunk_handle.h"
#include "engine/store/eviction.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/frequency_sketch.h"
#include "engine/store/lower_tier.h"
#include "engine/store/lower_tiers.h"

namespace kvblend::store {

struct InsertOptions {
  double compute_cost_seconds = 0;  // what computing it again would take, measured or estimated; finite, >= 0
  bool pinned = false;
  bool on_purpose = false;  // somebody asked to store it, rather than it being left over from a prompt
  std::string label = {};   // free text shown by List
};

class ChunkStore final : public ChunkCatalog {
 public:
  struct Options {
    int64_t byte_budget = int64_t{4} << 30;
    HostMemory* memory = &Heap();    // of entries that come from lower tiers; must outlive the store
    int64_t pinned_byte_limit = -1;  // what operators may pin, at most byte_budget; -1: half of it
    NamespaceQuotas namespace_quotas = {};
    int64_t max_queued_write_bytes = int64_t{256} << 20;  // on their way to each lower tier
    absl::Duration lookup_budget =
        absl::Milliseconds(50);                   // one prompt's waiting for lookups across the network
    std::function<absl::Time()> now = absl::Now;  // thread-safe; may not call back into the store
  };

  /// What an entry counts against the budget besides its KV: bookkeeping, generously, so that chunks without
  /// tokens are bounded as well.
  static constexpr int64_t kEntryOverheadBytes = 1024;

  /// `lower`: the tier to ask first first. kInvalidArgument naming the option.
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Create(
      Options options, std::vector<std::unique_ptr<LowerTier>> lower = {});
  static absl::StatusOr<std::unique_ptr<ChunkStore>> Create(Options options,
                                                            std::unique_ptr<LowerTier> lower);
  /// Finishes what is on its way to the lower tiers.
  ~ChunkStore() override;

  // --- data path ------------------------------------------------------------------------------------------

  /// A number for the PromptReads of one prompt: earlier prompts' reads go first.
  uint64_t NewPrompt() { return next_prompt_.fetch_add(1, std::memory_order_relaxed); }

  /// In the order of `keys`. What has to be read for them is added to `reads`, and is on its way once that is
  /// asked for; without, at once. When the last handle of an entry goes, it is taken out if none of its
  /// layers was asked for, and else the rest of them is. Keys that are looked up together cost a tier across
  /// the network one round trip; over it, a prompt waits for its lookups together for at most lookup_budget.
  std::vector<std::optional<ChunkHandle>> Lookup(absl::Span<const ChunkKey> keys,
                                                 PromptReads* reads = nullptr);
  std::optional<ChunkHandle> Lookup(const ChunkKey& key, PromptReads* reads = nullptr);

  /// As Lookup, but is no use of what it finds: neither a hit nor a sign that somebody asks for it. What is
  /// only in lower tiers is on its way into memory when this returns.
  std::vector<std::optional<ChunkHandle>> Prefetch(absl::Span<const ChunkKey> keys);

  /// An entry of the same chunk whatever its anchor; of several, an anchored one rather than an isolated one,
  /// and then the one with the smallest key: the same entries give the same choice, whatever happened before.
  std::vector<std::optional<ChunkHandle>> LookupAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                          PromptReads* reads = nullptr);
  std::optional<ChunkHandle> LookupAnyAnchor(const ContentKey& content_key, PromptReads* reads = nullptr);

  /// The entry, or the duty to compute it, or a place in the queue behind the one who does. An entry that a
  /// lower tier has not (it was full, or has evicted it) is written there again.
  /// kResourceExhausted when it could not be stored however much were evicted: larger than the budget without
  /// what operators pinned. kInvalidArgument: bad format.
  absl::StatusOr<ReserveResult> LookupOrReserve(const ChunkAddress& address);

  /// Stores a chunk; needs no reservation, and serves whoever waits for it. Evicts idle entries to make room.
  /// When the key is already resident its entry is returned (and pinned, if so asked) and `kv` dropped: equal
  /// key, equal KV. On error the store is unchanged. kResourceExhausted: does not fit beside what is pinned
  /// or in use, or over the limit of pinned bytes; names the bytes. kInvalidArgument: `kv` isn't of the
  /// address's shape, or a bad cost.
  absl::StatusOr<ChunkHandle> Insert(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                     const InsertOptions& options);

  /// Waits until a chunk that was inserted is in the durable tier: it will be there after a restart.
  /// kFailedPrecondition: there is none. kDeadlineExceeded: not by then. Otherwise why it could not be
  /// written.
  absl::Status WaitUntilDurable(const ChunkKey& key, absl::Time deadline);
  /// Whether there is a durable tier.
  bool durable() const { return lower_.durable(); }
  bool has_lower_tiers() const { return !lower_.empty(); }
  /// Waits until nothing is on its way to the lower tiers. kDeadlineExceeded.
  absl::Status FlushWrites(absl::Time deadline);

  // --- for operators: see ChunkCatalog ---------------------------------------------------------------------

  absl::StatusOr<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const override;
  absl::StatusOr<ChunkPage> List(NamespaceFilter filter, std::string_view page_token,
                                 int32_t page_size) const override;
  bool Erase(NamespaceFilter filter, const ChunkKey& key) override;
  /// Erase under every anchor. Returns the number of entries erased.
  int64_t EraseContent(NamespaceFilter filter, const ContentKey& content_key);
  int64_t Clear(NamespaceFilter filter) override;
  absl::Status Pin(NamespaceFilter filter, const ChunkKey& key) override;
  absl::Status Unpin(NamespaceFilter filter, const ChunkKey& key) override;

  StoreStats Stats() const;
  /// Of the tiers below, in the order of lookups.
  std::vector<TierStats> LowerTierStats() const { return lower_.Report(); }
  /// How fast the lower tiers are.
  const ReadMeter& read_meter() const { return read_meter_; }

 private:
  friend class ChunkHandle;
  friend class Reservation;
  friend class Pending;
  using Entry = internal::Entry;
  using Waiter = internal::Waiter;
  using NamespaceAndKey = std::pair<std::string, ChunkKey>;
  /// Someone has the duty to compute this chunk: a Reservation, or a waiter that was given it and hasn't
  /// looked yet.
  struct ReservationSlot {
    std::deque<std::shared_ptr<Waiter>> waiters;
  };
  /// In LookupAnyAnchor's order of preference.
  struct ContentIndexKey {
    ContentKey content_key;
    bool isolated = false;
    ChunkKey key;
    friend bool operator<(const ContentIndexKey& a, const ContentIndexKey& b) {
      return std::tie(a.content_key, a.isolated, a.key) < std::tie(b.content_key, b.isolated, b.key);
    }
  };
  /// What is left to do once the lock is released: callbacks run and memory is freed outside it.
  struct Deferred {
    std::vector<std::shared_ptr<Waiter>> ready;
    std::vector<std::unique_ptr<Entry>> freed;
    std::vector<std::shared_ptr<ArrivingKv>> unfinished;  // of which nobody will ask for the rest
    void Run();
  };

  ChunkStore(Options options, std::vector<std::unique_ptr<LowerTier>> lower);

  // Called by handles, reservations and waiters.
  void ReleaseHandle(Entry* entry);
  absl::StatusOr<ChunkHandle> Commit(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                     const InsertOptions& options);
  void Abandon(const ChunkKey& key);
  Pending::Outcome TakeOutcome(const ChunkAddress& address, Waiter& waiter);
  void SetCallback(Waiter& waiter, absl::AnyInvocable<void()> ready);
  void StopWaiting(const ChunkKey& key, const std::shared_ptr<Waiter>& waiter);

  absl::Status CheckInsert(const ChunkAddress& address, const ChunkKv* kv,
                           const InsertOptions& options) const;
  absl::StatusOr<ChunkHandle> InsertLocked(const ChunkAddress& address, std::unique_ptr<ChunkKv>& kv,
                                           const InsertOptions& options, Deferred& deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoom(const ChunkAddress& address, int64_t bytes, Deferred& deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict(EvictionQueue::EntryId id, Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeRoomInNamespace(const std::string& tenant_namespace, int64_t bytes, Deferred& deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t FrequencyOf(const Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// Queues it for the lower tiers that have it not, when all of it is here.
  void OfferToLower(const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(Entry* entry, Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPinLimit(int64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry* AddEntry(const ChunkAddress& address, std::shared_ptr<const ChunkKv> kv, int64_t bytes,
                  const InsertOptions& options, absl::Time created) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// FindLocked, but entries that could not be read are taken out.
  Entry* FindUsable(ChunkKey key, Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry* FindLocked(const ChunkKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Entry* FindLocked(NamespaceFilter filter, const ChunkKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// What is missing of the entry is added to `reads`, unless that is null.
  ChunkHandle HandleOf(Entry* entry, PromptReads* reads) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ChunkHandle HitLocked(Entry* entry, PromptReads* reads) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddHandle(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropHandle(Entry* entry, Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ResolveWaiters(const ChunkKey& key, Entry* entry, Deferred& deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AbandonLocked(const ChunkKey& key, Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UpdateEvictability(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeOut(Entry* entry, Deferred& deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static ChunkInfo InfoOf(const Entry& entry);

  // The lower tiers; called without the lock.
  /// Fills in the handles that are missing in `found`, which is in the order of `keys`.
  /// `is_use`: for a prompt that computes with it.
  void Fetch(absl::Span<const ChunkKey> keys, PromptReads* reads, bool is_use,
             std::vector<std::optional<ChunkHandle>>& found);
  std::optional<ChunkHandle> Admit(std::shared_ptr<LowerTierEntry> source, bool is_use, PromptReads& reads);
  std::vector<ChunkInfo> ListHost(NamespaceFilter filter, const std::optional<NamespaceAndKey>& after,
                                  int64_t limit) const;

  const Options options_;
  ReadMeter read_meter_;  // outlives the reads of lower_
  std::atomic<uint64_t> next_prompt_{1};

  // Nothing is called, waited for or freed while mutex_ is held, but for options_.now, lower_.Write
  // and lower_.MarkUnreadable, which do not wait; see Deferred.
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<EvictionQueue::EntryId, std::unique_ptr<Entry>> entries_
      ABSL_GUARDED_BY(mutex_);                                            // resident, and erased but held
  absl::flat_hash_map<ChunkKey, Entry*> by_key_ ABSL_GUARDED_BY(mutex_);  // resident
  absl::btree_map<NamespaceAndKey, Entry*> by_namespace_ ABSL_GUARDED_BY(mutex_);  // resident
  absl::btree_map<ContentIndexKey, Entry*> by_content_ ABSL_GUARDED_BY(mutex_);    // resident
  absl::flat_hash_map<ChunkKey, ReservationSlot> reservations_ ABSL_GUARDED_BY(mutex_);
  EvictionQueue eviction_queue_ ABSL_GUARDED_BY(mutex_);
  FrequencySketch frequencies_ ABSL_GUARDED_BY(mutex_);
  absl::node_hash_map<std::string, int64_t> namespace_bytes_ ABSL_GUARDED_BY(mutex_);  // as stats_.bytes
  EvictionQueue::EntryId next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  StoreStats stats_ ABSL_GUARDED_BY(mutex_);

  LowerTiers lower_;
};

}  // namespace kvblend::store
