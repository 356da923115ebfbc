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
///                LookupOrReserve misses            Reservation::Commit
///     (absent) --------------------------> reserved -----------------> resident <---- Insert ---- (absent)
///         ^                                   |                            |
///         +---- last interested caller gives up                            |
///                                                                          v
///            resident:   in use: handles > 0  <---- lookup / last handle goes ---->  idle: handles == 0
///                        never evicted                                    not pinned: in the eviction queue
///                                                                         pinned by an operator: never
///                                                                         evicted
///                           |                                                      |
///                           | Erase                                                | evicted, or Erase
///                           v                                                      v
///            erased, held: no lookup finds it, its bytes still count  ------->   freed
///                                                            last handle goes
///
/// `reserved` has no Entry yet; it is a ReservationSlot of the store. An entry found in the lower tier
/// becomes resident at once, and its layers arrive behind the handle; when one can't be read, the entry is
/// erased by the next lookup that comes upon it.
struct Entry {
  // Written once, before any other thread can see the entry.
  EvictionQueue::EntryId id = 0;
  ChunkAddress address;
  std::shared_ptr<const ChunkKv> kv;
  std::shared_ptr<ArrivingKv> arriving;  // null: all of kv was there from the beginning
  int64_t bytes = 0;
  int64_t* namespace_bytes = nullptr;  // of its namespace, in the store
  std::string label;
  double compute_cost_seconds = 0;
  absl::Time created;

  // Memory that is still being written outlives this; see ArrivingKv.
  ~Entry() {
    if (arriving != nullptr) arriving->Cancel();
  }

  /// All of kv is there.
  bool is_whole() const { return arriving == nullptr || arriving->complete(); }

  // Guarded by the store's mutex.
  int64_t handles = 0;
  bool pinned = false;
  bool resident = true;
  bool promoted = false;  // written to the tiers above the one that it came from
  bool unused = false;  // read from a lower tier for whoever asks next: that one is the first, not the second
  bool proven = false;  // stored on purpose, or asked for again since it is here
  int64_t hits = 0;
  absl::Time last_used;
  std::optional<EvictionQueue::Ticket> eviction_ticket;  // set exactly while resident, idle and not pinned
};

}  // namespace kvblend::store::internal
