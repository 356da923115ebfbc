// The store's record of one chunk. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/store/arriving_kv.h"
#include "engine/store/eviction.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"

namespace kvblend::store::internal {

/// The life of a chunk in the store:
///
///              LookupOrReserve                Commit
///     absent ------------------> reserved ------------> resident
///        ^                          |                    ^   |
///        +----- given up -----------+                    |   |  evicted (only when idle), or erased
///        |                                               |   v
///        +-- Insert, or found in a lower tier -----------+  freed, once the last handle has gone
///
///     resident is one of:
///       in use    handles > 0: never evicted
///       pinned    by an operator: never evicted
///       idle      neither: in the queue for eviction
///
/// A reserved chunk has no Entry yet. An entry found in a lower tier is resident at once, and its layers
/// arrive later. If one of them can't be read, the next lookup that finds the entry erases it.
struct Entry {
  // Written once, before any other thread can see the entry.
  ChunkAddress address;
  std::shared_ptr<const ChunkKv> kv;
  std::shared_ptr<ArrivingKv> arriving;  // null: all of kv was there from the beginning
  int64_t bytes = 0;
  std::string label;
  double compute_cost_seconds = 0;
  absl::Time created;
  EvictionQueue::EntryId id = 0;       // set by the index
  int64_t* namespace_bytes = nullptr;  // the bytes of the entry's namespace, in the index

  // Memory that is still being written outlives the entry; see ArrivingKv.
  ~Entry() {
    if (arriving != nullptr) arriving->Cancel();
  }

  /// Whether all of kv is there.
  bool is_whole() const { return arriving == nullptr || arriving->complete(); }

  // Guarded by the store's mutex.
  bool wanted = false;    // by somebody who stores it: every lower tier is to have it
  bool promoted = false;  // written to the lower tiers that did not have it
  bool unused = false;    // prefetched from a lower tier: the next request is its first use here
  bool proven = false;    // stored on purpose, or asked for again since then
  int64_t hits = 0;
  absl::Time last_used;
  absl::Time use_told = absl::InfinitePast();  // when the lower tiers last heard that it is used

  // Guarded by the store's mutex; only the index changes them.
  int64_t handles = 0;
  bool pinned = false;
  bool resident = true;
  std::optional<EvictionQueue::Ticket> eviction_ticket;  // set exactly while resident, idle and not pinned
};

}  // namespace kvblend::store::internal
