// Which entries host memory holds, how many bytes they take, and which is evicted first. Private to this
// folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "engine/api/chunk_info.h"
#include "engine/api/options.h"
#include "engine/api/stats.h"
#include "engine/store/chunk_entry.h"
#include "engine/store/eviction.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/frequency_sketch.h"

namespace kvblend::store::internal {

/// Entries by key, by content and by namespace; their bytes, which never exceed the budget; the order in
/// which idle ones are evicted. Knows nothing of lower tiers, nor of the contents of entries. Not
/// thread-safe.
class ChunkIndex {
 public:
  struct Limits {
    int64_t byte_budget = 0;  // of all entries, erased ones that handles still hold included
    int64_t pinned_byte_limit = 0;
    NamespaceQuotas namespace_quotas = {};  // of byte_budget
  };
  /// Entries that have left the index: freeing them takes time, so the caller does it without its lock.
  using Removed = std::vector<std::unique_ptr<Entry>>;

  explicit ChunkIndex(Limits limits);
  /// REQUIRES: no entry has handles.
  ~ChunkIndex();

  // --- looking; erased entries are not found --------------------------------------------------------------

  Entry* Find(const ChunkKey& key) const;
  Entry* Find(NamespaceFilter filter, const ChunkKey& key) const;
  /// The entry of that content with the smallest ContentMatch.
  Entry* FindAnyAnchor(const ContentKey& content_key) const;
  /// The first `limit` entries after `after`.
  std::vector<ChunkInfo> List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                              int64_t limit) const;
  static ChunkInfo InfoOf(const Entry& entry);

  /// Notes a request for this chunk, whether it is here or not.
  void RecordAsked(const ChunkKey& key);
  /// How often it was requested lately, at least 1; for eviction.
  int64_t FrequencyOf(const Entry& entry) const;

  /// Fills in the figures that the index knows.
  void Report(StoreStats& stats) const;
  int64_t pinned_bytes() const { return pinned_bytes_; }

  // --- changing -------------------------------------------------------------------------------------------

  /// Takes `entry` over, without handles, and evicts idle entries to make room, those of its own namespace
  /// first. kResourceExhausted, with nothing changed: it does not fit beside what is pinned or in use, or is
  /// pinned and over the limit of pinned bytes; names the bytes. REQUIRES: the key is not there.
  absl::Status Add(std::unique_ptr<Entry>& entry, Removed& evicted);
  /// Erases an entry: no lookup finds it any more, and it is freed once the last handle has gone. REQUIRES:
  /// resident.
  void Erase(Entry* entry, Removed& removed);
  void AddHandle(Entry* entry);
  void DropHandle(Entry* entry, Removed& removed);
  /// Idempotent. kResourceExhausted: over the limit of pinned bytes. REQUIRES: resident.
  absl::Status SetPinned(Entry* entry, bool pinned);
  /// Whether so many bytes more could be pinned. kResourceExhausted.
  absl::Status CheckPinLimit(int64_t bytes) const;
  /// Keeps so many bytes free for a pin to come, until ReleasePin. kResourceExhausted, as CheckPinLimit.
  absl::Status ReservePin(int64_t bytes);
  void ReleasePin(int64_t bytes) { reserved_pin_bytes_ -= bytes; }
  /// Sets NamespaceQuotas::bytes; evicts idle entries of namespaces that have more.
  void LimitNamespaces(const std::map<std::string, int64_t>& bytes, Removed& evicted);
  int64_t RoomOf(const std::string& tenant_namespace) const {
    return limits_.namespace_quotas.BytesOf(tenant_namespace, limits_.byte_budget);
  }
  /// Whether `bytes` fit into the namespace's quota beside `kept` bytes that stay. kResourceExhausted naming
  /// the quota.
  absl::Status CheckNamespace(const std::string& tenant_namespace, int64_t bytes, int64_t kept) const;

 private:
  absl::Status MakeRoom(const std::string& tenant_namespace, int64_t bytes, Removed& evicted);
  /// Bytes of the namespace that are pinned or in use. REQUIRES: there are quotas.
  int64_t KeptBytesOf(const std::string& tenant_namespace) const;
  /// Evicts until `bytes` more fit into its quota, or nothing is idle.
  void EvictInNamespace(const std::string& tenant_namespace, int64_t bytes, Removed& evicted);
  void Evict(EvictionQueue::EntryId id, Removed& evicted);
  void UpdateEvictability(Entry* entry);
  void Free(Entry* entry, Removed& removed);
  static ListPlace PlaceOf(const Entry& entry) { return {entry.address.tenant_namespace, entry.address.key}; }

  Limits limits_;
  absl::flat_hash_map<EvictionQueue::EntryId, std::unique_ptr<Entry>> entries_;  // erased but held ones too
  absl::flat_hash_map<ChunkKey, Entry*> by_key_;
  absl::btree_map<ListPlace, Entry*> by_namespace_;
  absl::btree_map<std::pair<ContentKey, ContentMatch>, Entry*> by_content_;
  EvictionQueue eviction_queue_;
  FrequencySketch frequencies_;
  absl::node_hash_map<std::string, int64_t> namespace_bytes_;  // as bytes_
  EvictionQueue::EntryId next_id_ = 0;
  int64_t bytes_ = 0;
  int64_t pinned_entries_ = 0;
  int64_t pinned_bytes_ = 0;
  int64_t reserved_pin_bytes_ = 0;
  int64_t erased_held_bytes_ = 0;
  int64_t evictions_ = 0;
  int64_t evicted_bytes_ = 0;
};

}  // namespace kvblend::store::internal
