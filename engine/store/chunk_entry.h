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
/// arrive behind the handle; when one of them can't be read, the next lookup that comes upon the entry
/// erases it.
struct Entry {
  // Written once, before any other thread can see the entry.
  ChunkAddress address;
  std::shared_ptr<const ChunkKv> kv;
  std::shared_ptr<ArrivingKv> arriving;  // null: all of kv was there from the beginning
  int64_t bytes = 0;
  std::string label;
  double compute_cost_seconds = 0;
  absl::Time created;
  EvictionQueue::EntryId id = 0;       // the index gives it, as the next
  int64_t* namespace_bytes = nullptr;  // what the entry's namespace takes, in the index

  // Memory that is still being written outlives the entry; see ArrivingKv.
  ~Entry() {
    if (arriving != nullptr) arriving->Cancel();
  }

  /// All of kv is there.
  bool is_whole() const { return arriving == nullptr || arriving->complete(); }

  // Guarded by the store's mutex.
  bool promoted = false;  // written to the tiers above the one that it came from
  bool unused = false;  // read from a lower tier for whoever asks next: that one is the first, not the second
  bool proven = false;  // stored on purpose, or asked for again since it is here
  int64_t hits = 0;
  absl::Time last_used;

  // The same; the index alone changes them.
  int64_t handles = 0;
  bool pinned = false;
  bool resident = true;
  std::optional<EvictionQueue::Ticket> eviction_ticket;  // set exactly while resident, idle and not pinned
};

}  // namespace kvblend::store::internal
