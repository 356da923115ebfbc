// What the chunk store reports about its entries: plain data.
//
// Units: *_tokens tokens, *_bytes and bytes bytes, *_seconds seconds.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "engine/api/chunk_key.h"
#include "engine/api/tier.h"

namespace kvblend {

/// One tenant's namespace, which may be ""; or kAllNamespaces.
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
  int64_t hits = 0;     // handles given out since insertion, not counting the inserter's own
  double compute_cost_seconds = 0;
  absl::Time created;
  absl::Time last_used;  // last hit, or created
};

struct ChunkPage {
  std::vector<ChunkInfo> chunks;
  std::string next_page_token;  // empty: that was the last page
};

}  // namespace kvblend
