// What an engine reports about itself: plain data.
//
// Units: *_tokens tokens, *_bytes and bytes bytes, *_seconds seconds. Figures say how things are now; those
// marked "since start" only grow.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api/correction.h"
#include "engine/api/tier.h"

namespace kvblend {

struct EngineInfo {
  std::string version;
  std::string model_name;
  std::string model_architecture;
  std::string model_fingerprint;  // hex
  std::string device;             // what computes: "cpu", "cuda:0", "reference"
  std::string device_name;        // the name that the device reports
  std::string device_reason;      // why it was chosen
  std::string backend;            // one line for people
  std::string chat_format;        // by name, or "template": the model's own, which has no name
  std::string told_date;          // the date in its prompts, as "2026-01-31"; empty: they have none
  std::string kv_dtype;           // of pages
  std::string chunk_format;       // of stored chunks
  int64_t chunk_bytes_per_token = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t hidden_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  int32_t page_size = 0;
  int32_t max_batch_size = 0;        // answers decoded together
  int64_t max_batch_tokens = 0;      // room for their KV
  double self_check_max_error = -1;  // largest logit difference relative to the logits' norm; -1: not run
};

struct StoreStats {
  int64_t entries = 0;            // resident, that is, found by lookups
  int64_t bytes = 0;              // in use by resident entries and by erased ones that handles still hold
  int64_t idle_bytes = 0;         // the part of bytes that could be evicted at once
  int64_t pinned_entries = 0;     // those of the entries that operators have pinned
  int64_t pinned_bytes = 0;       // the part of bytes that operators have pinned
  int64_t erased_held_bytes = 0;  // the part of bytes that is erased, but held by handles
  int64_t byte_budget = 0;
  int64_t pinned_byte_limit = 0;
  int64_t reservations = 0;  // chunks being computed for the store

  // All since start, down to `erased`. What prompts find is counted apart from what precomputation finds:
  // lookups = hits + misses; reserve_lookups = reserve_hits + reservations_made + waits + refusals. Prompts
  // look up their anchors too, and a chunk once for each namespace, so that the share of chunks that are
  // found is not hits / lookups, but EngineStats::prompt_chunks_found / prompt_chunks.
  int64_t lookups = 0;  // Lookup
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t reserve_lookups = 0;  // LookupOrReserve
  int64_t reserve_hits = 0;
  int64_t reservations_made = 0;
  int64_t waits = 0;                 // another caller was already computing the chunk
  int64_t other_anchor_lookups = 0;  // LookupAnyAnchor
  int64_t other_anchor_hits = 0;
  int64_t insertions = 0;
  int64_t inserted_bytes = 0;
  int64_t duplicate_insertions = 0;  // the key was already resident: nothing stored
  int64_t rejected_insertions = 0;   // did not fit, or never would have
  int64_t evictions = 0;
  int64_t evicted_bytes = 0;
  int64_t erased = 0;  // entries removed by Erase and Clear, from all tiers

  // The tiers below host memory; all 0 without one.
  int64_t lower_hits = 0;      // since start: lookups of all kinds that found an entry there
  int64_t prefetched = 0;      // since start: entries read from there ahead of the prompts that need them
  int64_t failed_entries = 0;  // since start: entries that could not be read to their end
  int64_t queued_writes = 0;   // entries on their way there
  int64_t queued_write_bytes = 0;
  int64_t written_entries = 0;  // since start
  int64_t dropped_writes =
      0;  // since start: entries given up because too many bytes were waiting to be written
  int64_t failed_writes = 0;  // since start
};

/// One figure that a tier below host memory reports.
struct TierStat {
  enum class Kind : uint8_t { kGauge, kCounter };
  std::string_view name;  // of the metric, without prefix and "_total": "evictions", "read_bytes"
  std::string_view help;  // a sentence for people
  Kind kind = Kind::kCounter;
  double value = 0;
};

/// What one tier below host memory reports.
struct TierStats {
  Tier tier = Tier::kNone;
  bool failing = false;  // the last write or read failed, or the tier does not answer
  std::vector<TierStat> values;

  /// The value of that name; 0 when the tier has none.
  double Value(std::string_view name) const {
    for (const TierStat& stat : values) {
      if (stat.name == name) return stat.value;
    }
    return 0;
  }
};

/// What the loading controller has measured.
struct LoadingStats {
  std::map<Tier, double> read_bytes_per_second;  // of tiers that were read from
  // Through all layers; 0: not measured.
  double compute_seconds_per_token = 0;  // in the middle of 4,096 tokens
  double place_seconds_per_token = 0;    // stored KV in host memory -> pages
};

/// The memory of a device that has its own; used_bytes counts what all programs use.
struct DeviceMemoryStats {
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
};

/// A snapshot for metrics and dashboards.
struct EngineStats {
  int32_t requests_waiting = 0;
  int64_t tokens_waiting = 0;         // of the waiting requests
  double predicted_wait_seconds = 0;  // until all of them have had their turn
  int32_t requests_running = 0;
  int64_t prompt_chunks = 0;          // since start: of prompts that may reuse some
  int64_t prompt_chunks_found = 0;    // since start: of those, what was found, in whatever tier, and used
  int32_t sequences_decoding = 0;     // running requests whose answers are being written
  int64_t decode_steps = 0;           // since start
  int64_t decoded_tokens = 0;         // since start, by those steps
  int64_t preemptions = 0;            // since start: answers that had to give up their pages, and go on later
  int64_t prompt_slices = 0;          // since start: slices of other work between two steps of decoding
  double prompt_slice_seconds = 0;    // how long they took together
  int64_t drafted_tokens = 0;         // since start: tokens guessed and then checked
  int64_t accepted_draft_tokens = 0;  // since start: of those, the right ones; each saved a step
  int32_t background_unfinished = 0;  // chunks still to be computed after their requests were answered
  int32_t pages_used = 0;             // not counting pages_kept
  int32_t pages_kept = 0;             // kept for the next turns of conversations; given to whoever needs them
  int32_t pages_shared = 0;           // held by several sequences
  int32_t kept_conversations = 0;
  int64_t kept_conversations_taken = 0;    // since start: prompts that continued one
  int64_t kept_conversations_evicted = 0;  // since start: because pages were needed
  int64_t refined_tokens = 0;              // since start: tokens of kept conversations made exact while idle
  int64_t pages_dropped = 0;  // since start: given back because their layers' windows have passed them
  int32_t pages_total = 0;
  int64_t page_bytes = 0;                          // of one page
  int64_t background_chunks_stored = 0;            // since start
  int64_t background_chunks_failed = 0;            // since start
  std::optional<DeviceMemoryStats> device_memory;  // on a GPU
  LoadingStats loading;
  CorrectionStats correction;
  StoreStats store;
  std::vector<TierStats> tiers;  // below host memory, in the order in which they are looked into
};

}  // namespace kvblend
