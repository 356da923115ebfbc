// What the store tells about its entries and itself: plain data.
//
// Units: *_tokens tokens, *_bytes and bytes bytes, *_seconds seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/store/chunk_key.h"
#include "engine/tier.h"

namespace kvblend::store {

/// One tenant's namespace (which may be "") or, when empty, all of them.
using NamespaceFilter = std::optional<std::string_view>;
inline constexpr NamespaceFilter kAllNamespaces = std::nullopt;

/// A snapshot of one resident entry.
struct ChunkInfo {
  ChunkKey key;
  ContentKey content_key;
  Digest anchor_hash{};
  std::string tenant_namespace;
  std::string label;  // free text given at insertion
  int32_t num_tokens = 0;
  int64_t bytes = 0;  // what the entry counts against the budget: KV and bookkeeping
  Tier tier = Tier::kHostMemory;
  bool pinned = false;  // by an operator: never evicted
  int64_t hits = 0;     // handles given out since insertion, the inserter's own left out
  double compute_cost_seconds = 0;
  absl::Time created;
  absl::Time last_used;  // last hit, or created
};

struct ChunkPage {
  std::vector<ChunkInfo> chunks;
  std::string next_page_token;  // empty: that was the last page
};

/// Entries and bytes are as of now; everything under "since start" only grows.
struct StoreStats {
  int64_t entries = 0;            // resident, that is, found by lookups
  int64_t bytes = 0;              // in use by resident entries and by erased ones that handles still hold
  int64_t idle_bytes = 0;         // of bytes: could be evicted at once
  int64_t pinned_entries = 0;     // of entries: pinned by operators
  int64_t pinned_bytes = 0;       // of bytes: pinned by operators
  int64_t erased_held_bytes = 0;  // of bytes: erased, but held by handles
  int64_t byte_budget = 0;
  int64_t pinned_byte_limit = 0;
  int64_t reservations = 0;  // chunks being computed for the store

  // Since start. What prompts find is counted apart from what precomputation finds, so that hits / lookups is
  // the share of reuse: lookups = hits + misses; reserve_lookups = reserve_hits + reservations_made + waits +
  // refusals.
  int64_t lookups = 0;  // Lookup
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t reserve_lookups = 0;  // LookupOrReserve
  int64_t reserve_hits = 0;
  int64_t reservations_made = 0;
  int64_t waits = 0;                 // told to wait for another caller's computation
  int64_t other_anchor_lookups = 0;  // LookupAnyAnchor
  int64_t other_anchor_hits = 0;
  int64_t insertions = 0;
  int64_t inserted_bytes = 0;
  int64_t duplicate_insertions = 0;  // the key was already resident: nothing stored
  int64_t rejected_insertions = 0;   // did not fit
  int64_t evictions = 0;
  int64_t evicted_bytes = 0;
  int64_t erased = 0;  // entries taken out by Erase, EraseContent and Clear, of all tiers

  // The tier below host memory; all 0 without one.
  int64_t lower_hits = 0;      // since start: lookups of all kinds that found an entry there
  int64_t prefetched = 0;      // since start: entries read from there ahead of the prompts that need them
  int64_t failed_entries = 0;  // since start: entries that could not be read to their end
  int64_t queued_writes = 0;   // entries on their way there
  int64_t queued_write_bytes = 0;
  int64_t written_entries = 0;  // since start
  int64_t dropped_writes = 0;   // since start: too many bytes were on their way
  int64_t failed_writes = 0;    // since start
};

}  // namespace kvblend::store
