// What the disk tier knows of its entries without reading them. Private to this folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/node_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/chunk_info.h"
#include "engine/api/options.h"
#include "engine/store/eviction.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::store::internal {

/// Keeps one copy of each of few different values that many entries have. Not thread-safe.
template <typename Value>
class Interned {
 public:
  const Value* Acquire(const Value& value) {
    auto& [kept, uses] = *values_.try_emplace(value, 0).first;
    ++uses;
    return &kept;
  }
  void Release(const Value* value) {
    const auto found = values_.find(*value);
    if (--found->second == 0) values_.erase(found);
  }
  /// nullptr: nobody has it.
  const Value* Find(const Value& value) const {
    const auto found = values_.find(value);
    return found == values_.end() ? nullptr : &found->first;
  }

 private:
  absl::node_hash_map<Value, int64_t> values_;
};

/// Entries by key, by content and by namespace; what they take of the quota, and which of them go for others;
/// which keys somebody is changing the files of. No IO, no lock: not thread-safe.
///
/// Made for millions of entries: they lie in blocks and are named by 4-byte slots in all containers, so that
/// an entry costs at most 512 bytes, containers and the longest label included (tests/bench/disk_tier_bench
/// measures it).
class DiskIndex {
 public:
  using Slot = uint32_t;

  struct Limits {
    int64_t quota_bytes = 0;
    NamespaceQuotas namespace_quotas = {};  // of quota_bytes
  };

  struct NewEntry {
    const ChunkAddress& address;
    std::string_view label;  // at most 256 bytes
    double compute_cost_seconds = 0;
    absl::Time created;
    int64_t bytes = 0;      // of the file
    int64_t frequency = 1;  // as LowerTier::PutOptions means it
  };

  /// What one entry is; the slots' numbers are used again after Erase, generations are not.
  struct Entry {
    ChunkKey key;
    ContentKey content_key;
    const Digest* anchor_hash = nullptr;            // interned
    const std::string* tenant_namespace = nullptr;  // interned
    std::unique_ptr<char[]> label;                  // label_bytes of them; null: empty
    int64_t bytes = 0;
    double compute_cost_seconds = 0;
    int64_t created_micros = 0;
    int64_t last_used_micros = 0;
    double ticket_priority = 0;
    uint64_t ticket_sequence = 0;
    uint64_t generation = 0;
    int32_t num_tokens = 0;
    uint32_t hits = 0;
    uint16_t label_bytes = 0;
    uint8_t earlier_hits = 0;       // before it was stored here, as far as they count for eviction
    bool on_probation : 1 = false;  // of its ticket
    bool isolated : 1 = false;
    bool pinned : 1 = false;
    bool busy : 1 = false;     // its key is claimed
    bool suspect : 1 = false;  // a read of it failed, by no fault of the bytes
    bool evictable : 1 = false;
    bool stuck : 1 = false;      // its file could not be removed: it is not given up for now
    bool was_stuck : 1 = false;  // or is not since its file was written
  };

  /// An entry that was given up. It is no longer in the index, and its key is claimed until its files are
  /// gone.
  struct Victim {
    ChunkInfo info;
    uint64_t generation = 0;
    int64_t frequency = 1;  // how often it was asked for, as far as that is known; at least 1
    bool suspect = false;
    bool was_stuck = false;  // its file could not be removed earlier
  };

  explicit DiskIndex(Limits limits);
  DiskIndex(const DiskIndex&) = delete;
  DiskIndex& operator=(const DiskIndex&) = delete;

  /// REQUIRES: the key is not there.
  Slot Insert(const NewEntry& entry);
  void Erase(Slot slot);

  std::optional<Slot> Find(const ChunkKey& key) const;
  std::optional<Slot> Find(NamespaceFilter filter, const ChunkKey& key) const;
  /// The best ContentMatch.
  std::optional<Slot> FindAnyAnchor(const ContentKey& content_key) const;
  const Entry& at(Slot slot) const { return Mutable(slot); }
  ChunkInfo InfoOf(Slot slot) const;
  /// The first `limit` entries after `after`.
  std::vector<ChunkInfo> List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                              int64_t limit) const;

  void Touch(Slot slot, absl::Time now);
  void SetPinned(Slot slot, bool pinned);
  /// kResourceExhausted: with this entry more than half of the quota would be pinned.
  absl::Status CheckPinLimit(Slot slot) const;
  void SetSuspect(Slot slot) { Mutable(slot).suspect = true; }
  /// An entry that was given up is one again, for its file is still there. `stuck`: it could not be removed,
  /// so others are given up first, until RetryStuck. REQUIRES: its key is still claimed.
  void PutBack(const Victim& victim, bool stuck);
  /// Lets up to so many stuck entries be given up again, those first that have been stuck for longest.
  void RetryStuck(int64_t max_entries);
  /// Lets all entries queue again, so that among equals the oldest goes first. For an index just built.
  void RequeueOldestFirst();

  /// Claimed: somebody changes the files of this key, and nobody else may; its entry is not given up.
  bool IsClaimed(const ChunkKey& key) const { return claimed_.contains(key); }
  /// REQUIRES: not claimed.
  void Claim(const ChunkKey& key);
  void Unclaim(const ChunkKey& key);

  /// Sets bytes of the quota aside for an entry of this namespace, giving up the entries that save the least
  /// computing per byte, the namespace's own first. kResourceExhausted, with nothing changed: does not fit
  /// beside what is pinned, claimed or set aside already; names the bytes.
  absl::StatusOr<std::vector<Victim>> Reserve(const std::string& tenant_namespace, int64_t bytes);
  void EndReservation(const std::string& tenant_namespace, int64_t bytes);
  /// Counts a file that is no entry any more and is still there, as if it were one.
  void HoldRoom(const std::string& tenant_namespace, int64_t bytes);
  void EndHold(const std::string& tenant_namespace, int64_t bytes);
  /// NamespaceQuotas::bytes from now on; gives up what is idle of those that have more.
  std::vector<Victim> LimitNamespaces(const std::map<std::string, int64_t>& bytes);
  /// Gives up what is idle of namespaces that have more than they may.
  std::vector<Victim> EvictToNamespaceQuotas();
  /// Gives up entries until the rest fits the quota, or only pinned ones are left.
  std::vector<Victim> EvictToQuota();
  /// Gives up entries of at least so many bytes together; none when that can't be.
  std::vector<Victim> EvictAtLeast(int64_t bytes);

  int64_t size() const { return static_cast<int64_t>(by_key_.size()); }
  int64_t bytes() const { return bytes_; }
  int64_t reserved_bytes() const { return reserved_bytes_ - held_bytes_; }
  int64_t held_bytes() const { return held_bytes_; }
  int64_t pinned_entries() const { return pinned_entries_; }
  int64_t pinned_bytes() const { return pinned_bytes_; }

 private:
  static constexpr Slot kBlockSlots = 256;

  struct KeyHash {
    using is_transparent = void;
    const DiskIndex* index;
    size_t operator()(Slot slot) const { return (*this)(index->at(slot).key); }
    size_t operator()(const ChunkKey& key) const { return absl::Hash<ChunkKey>()(key); }
  };
  struct KeyEqual {
    using is_transparent = void;
    const DiskIndex* index;
    bool operator()(Slot a, Slot b) const { return a == b; }
    bool operator()(Slot a, const ChunkKey& b) const { return index->at(a).key == b; }
    bool operator()(const ChunkKey& a, Slot b) const { return (*this)(b, a); }
  };
  struct NamespaceLess {
    using is_transparent = void;
    using Place = std::pair<std::string_view, ChunkKey>;
    const DiskIndex* index;
    Place PlaceOf(Slot slot) const;
    bool operator()(Slot a, Slot b) const { return PlaceOf(a) < PlaceOf(b); }
    bool operator()(Slot a, const Place& b) const { return PlaceOf(a) < b; }
    bool operator()(const Place& a, Slot b) const { return a < PlaceOf(b); }
  };
  struct ContentLess {
    using is_transparent = void;
    const DiskIndex* index;
    bool operator()(Slot a, Slot b) const;
    bool operator()(Slot a, const ContentKey& b) const { return index->at(a).content_key < b; }
    bool operator()(const ContentKey& a, Slot b) const { return a < index->at(b).content_key; }
  };

  Entry& Mutable(Slot slot) const { return blocks_[slot / kBlockSlots][slot % kBlockSlots]; }
  static int64_t FrequencyOf(const Entry& entry) { return 1 + int64_t{entry.hits} + entry.earlier_hits; }
  void SetBusy(Slot slot, bool busy);
  void UpdateEvictability(Slot slot);
  void SetStuck(Slot slot, bool stuck);
  int64_t BytesOf(const std::string& tenant_namespace) const;
  /// REQUIRES: `id` comes from the eviction queue, and is no longer in it.
  void GiveUp(std::optional<EvictionQueue::EntryId> id, std::vector<Victim>& victims);

  Limits limits_;
  std::vector<std::unique_ptr<Entry[]>> blocks_;
  std::vector<Slot> free_slots_;
  Interned<Digest> anchors_;
  Interned<std::string> namespaces_;
  absl::flat_hash_set<Slot, KeyHash, KeyEqual> by_key_;
  absl::btree_set<Slot, NamespaceLess> by_namespace_;
  absl::btree_set<Slot, ContentLess> by_content_;
  EvictionQueue eviction_queue_;
  absl::flat_hash_map<const std::string*, int64_t> namespace_bytes_;  // by interned name
  absl::flat_hash_set<ChunkKey> claimed_;
  uint64_t next_generation_ = 1;
  int64_t bytes_ = 0;
  int64_t reserved_bytes_ = 0;
  int64_t held_bytes_ = 0;                                           // of these
  absl::btree_set<std::pair<uint64_t, Slot>> stuck_;                 // by generation
  absl::flat_hash_map<std::string, int64_t> reserved_of_namespace_;  // of these
  int64_t pinned_entries_ = 0;
  int64_t pinned_bytes_ = 0;
};

}  // namespace kvblend::store::internal
