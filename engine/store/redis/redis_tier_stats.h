// What the Redis tier counts: plain data.
#pragma once

#include <array>
#include <cstdint>

#include "engine/store/redis/redis_cluster.h"
#include "engine/store/tier_figures.h"

namespace kvblend::store {

/// kRedisFigures says what they mean.
struct RedisTierStats : redis::ClusterCounters {
  // Now.
  int64_t nodes = 0;
  int64_t nodes_working = 0;
  int64_t pending_erasures = 0;

  // Since start; lookups = hits + misses + lookup_errors.
  int64_t lookups = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t lookup_errors = 0;
  double lookup_seconds = 0;
  int64_t reads = 0;
  int64_t read_bytes = 0;
  int64_t read_errors = 0;
  double read_seconds = 0;
  int64_t puts = 0;
  int64_t put_bytes = 0;
  double put_seconds = 0;
  int64_t duplicate_puts = 0;
  int64_t put_failures = 0;
  int64_t too_large_puts = 0;
  int64_t damaged_entries = 0;
  int64_t incomplete_entries = 0;
  int64_t unsupported_entries = 0;
  int64_t erased = 0;
  int64_t erase_failures = 0;
  int64_t ttl_refreshes = 0;
  int64_t stale_anchors = 0;
  int64_t index_errors = 0;
};

inline constexpr auto kRedisFigures = [] {
  using S = RedisTierStats;
  constexpr auto kGauge = TierStat::Kind::kGauge;
  return std::to_array<TierFigure<S>>({
      {&S::nodes, "nodes", "Redis nodes known; those of --chunk-redis until one has answered.", kGauge},
      {&S::nodes_working, "nodes_working",
       "Redis nodes that are asked; the others are left alone until they answer again.", kGauge},
      {&S::pending_erasures, "pending_erasures",
       "Chunks to be removed from Redis as soon as their node works.", kGauge},
      {&S::lookups, "lookups", "Chunks looked up in Redis."},
      {&S::hits, "hits", "Lookups in Redis that found their chunk."},
      {&S::misses, "misses", "Lookups in Redis that found nothing usable."},
      {&S::lookup_errors, "lookup_errors", "Lookups in Redis without an answer in time."},
      {&S::lookup_seconds, "lookup_seconds", "Time that lookups waited for Redis."},
      {&S::reads, "reads", "Layers read from Redis and found right."},
      {&S::read_bytes, "read_bytes", "Bytes of layers read from Redis."},
      {&S::read_errors, "read_errors", "Layers that could not be read from Redis, damage included."},
      {&S::read_seconds, "read_seconds", "Time from asking for a layer to having it, of all layers."},
      {&S::puts, "puts", "Chunks written to Redis."},
      {&S::put_bytes, "put_bytes", "Bytes of chunks written to Redis."},
      {&S::put_seconds, "put_seconds", "Time that writing chunks to Redis took."},
      {&S::duplicate_puts, "duplicate_puts", "Chunks to be written that Redis had already."},
      {&S::put_failures, "put_failures", "Chunks that Redis did not take."},
      {&S::too_large_puts, "too_large_puts", "Chunks with a section larger than the maximum value."},
      {&S::damaged_entries, "damaged", "Damaged chunks found in Redis, and removed."},
      {&S::incomplete_entries, "incomplete",
       "Chunks found in Redis without all their sections, and removed."},
      {&S::unsupported_entries, "unsupported", "Chunks found in Redis that a newer version wrote."},
      {&S::erased, "erased", "Chunks removed from Redis on request."},
      {&S::erase_failures, "erase_failures", "Chunks that could not be removed from Redis at once."},
      {&S::ttl_refreshes, "ttl_refreshes", "Chunks whose time in Redis was prolonged."},
      {&S::stale_anchors, "stale_anchors",
       "Names of chunks that are gone, taken out of the index of contents."},
      {&S::index_errors, "index_errors", "Chunks written that the index of contents does not name."},
      {&S::timeouts, "timeouts", "Connections to Redis that stopped answering."},
      {&S::connection_errors, "connection_errors", "Connections to Redis refused, closed or reset."},
      {&S::protocol_errors, "protocol_errors", "Connections to Redis ended for replies that are none."},
      {&S::error_replies, "error_replies", "Errors that Redis answered."},
      {&S::skipped_commands, "skipped_commands", "Commands not sent because their node does not work."},
      {&S::moved, "moved", "Redirections to the node that has a slot now."},
      {&S::asked, "asked", "Redirections to the node that a slot is moving to."},
      {&S::redirected_too_often, "redirected_too_often", "Commands given up after too many redirections."},
      {&S::breaker_opens, "breaker_opens", "How often a Redis node was found not to work."},
      {&S::topology_refreshes, "topology_refreshes", "How often the cluster's map of slots was read."},
      {&S::failed_topology_refreshes, "failed_topology_refreshes",
       "How often no node told the map of slots."},
  });
}();

}  // namespace kvblend::store
