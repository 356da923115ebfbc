// What the Redis tier tells about itself: plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/api/stats.h"

namespace kvblend::store {

struct RedisNodeStats {
  std::string address = {};   // host:port
  std::string state = {};     // "connecting", "working", "down", "probing"
  int64_t breaker_opens = 0;  // since the node became known
  int32_t connections = 0;    // now
};

/// Counts of what is there are as of now; everything under "since start" only grows.
struct RedisTierStats {
  bool connected = false;  // the nodes are known, and one of them works
  std::vector<RedisNodeStats> nodes;

  // Since start.
  int64_t lookups = 0;  // entries asked for: hits + misses + lookup_errors
  int64_t hits = 0;     // their header was there and right
  int64_t misses = 0;
  int64_t lookup_errors = 0;  // no answer, or none in time: misses too
  int64_t reads = 0;          // layers read and found right
  int64_t read_bytes = 0;
  int64_t read_errors = 0;  // layers that could not be read, or were not right
  int64_t cancelled_reads = 0;
  int64_t puts = 0;  // stored
  int64_t put_bytes = 0;
  int64_t duplicate_puts = 0;
  int64_t put_failures = 0;
  int64_t too_large_puts = 0;       // a section is larger than the maximum value size: not stored
  int64_t damaged_entries = 0;      // found and removed: a checksum, a key or a shape that is not right
  int64_t incomplete_entries = 0;   // found and removed: sections gone, by eviction for one
  int64_t unsupported_entries = 0;  // written by a newer version: left alone
  int64_t erased = 0;
  int64_t erase_failures = 0;
  int64_t ttl_refreshes = 0;  // of entries
  int64_t stale_anchors = 0;  // taken out of the content index
  int64_t index_errors = 0;   // entries that the content index does not name

  // Of the network, since start.
  int64_t timeouts = 0;           // connections that stopped answering
  int64_t connection_errors = 0;  // refused, closed, reset, not authenticated
  int64_t protocol_errors = 0;    // replies that are no RESP
  int64_t error_replies = 0;      // -CLUSTERDOWN, -OOM, ...
  int64_t skipped_commands = 0;   // met a node that does not work: not sent
  int64_t moved = 0;
  int64_t asked = 0;  // ASK
  int64_t redirected_too_often = 0;
  int64_t breaker_opens = 0;
  int64_t topology_refreshes = 0;
  int64_t failed_topology_refreshes = 0;

  // Sums, since start.
  double lookup_seconds = 0;  // that callers waited
  double read_seconds = 0;    // from asking for a layer to having it, of every layer
  double put_seconds = 0;

  int32_t nodes_working() const {
    return static_cast<int32_t>(std::count_if(
        nodes.begin(), nodes.end(), [](const RedisNodeStats& node) { return node.state == "working"; }));
  }
};

/// The same for metrics and for people, who know no tier by its kind.
TierStats Report(const RedisTierStats& stats);

}  // namespace kvblend::store
