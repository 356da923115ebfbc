// What the Redis tier counts: plain data.
#pragma once

#include <cstdint>

#include "engine/store/tier_figures.h"

namespace kvblend::store {

/// kRedisFigures says what they mean.
struct RedisTierStats {
  // Now.
  int64_t nodes = 0;
  int64_t nodes_working = 0;

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
  int64_t timeouts = 0;
  int64_t connection_errors = 0;
  int64_t protocol_errors = 0;
  int64_t error_replies = 0;
  int64_t skipped_commands = 0;
  int64_t moved = 0;
  int64_t asked = 0;
  int64_t redirected_too_often = 0;
  int64_t breaker_opens = 0;
  int64_t topology_refreshes = 0;
  int64_t failed_topology_refreshes = 0;
};

inline constexpr TierFigure<RedisTierStats> kRedisFigures[] = {
    {&RedisTierStats::nodes, TierStat::Kind::kGauge, "nodes", "Redis nodes known."},
    {&RedisTierStats::nodes_working, TierStat::Kind::kGauge, "nodes_working",
     "Redis nodes that are asked; the others are left alone until they answer again."},
    {&RedisTierStats::lookups, TierStat::Kind::kCounter, "lookups", "Chunks looked up in Redis."},
    {&RedisTierStats::hits, TierStat::Kind::kCounter, "hits", "Lookups in Redis that found their chunk."},
    {&RedisTierStats::misses, TierStat::Kind::kCounter, "misses",
     "Lookups in Redis that found nothing usable."},
    {&RedisTierStats::lookup_errors, TierStat::Kind::kCounter, "lookup_errors",
     "Lookups in Redis without an answer in time."},
    {&RedisTierStats::lookup_seconds, TierStat::Kind::kCounter, "lookup_seconds",
     "Time that lookups waited for Redis."},
    {&RedisTierStats::reads, TierStat::Kind::kCounter, "reads", "Layers read from Redis and found right."},
    {&RedisTierStats::read_bytes, TierStat::Kind::kCounter, "read_bytes", "Bytes of layers read from Redis."},
    {&RedisTierStats::read_errors, TierStat::Kind::kCounter, "read_errors",
     "Layers that could not be read from Redis, damage included."},
    {&RedisTierStats::read_seconds, TierStat::Kind::kCounter, "read_seconds",
     "Time from asking for a layer to having it, of all layers."},
    {&RedisTierStats::puts, TierStat::Kind::kCounter, "puts", "Chunks written to Redis."},
    {&RedisTierStats::put_bytes, TierStat::Kind::kCounter, "put_bytes", "Bytes of chunks written to Redis."},
    {&RedisTierStats::put_seconds, TierStat::Kind::kCounter, "put_seconds",
     "Time that writing chunks to Redis took."},
    {&RedisTierStats::duplicate_puts, TierStat::Kind::kCounter, "duplicate_puts",
     "Chunks to be written that Redis had already."},
    {&RedisTierStats::put_failures, TierStat::Kind::kCounter, "put_failures",
     "Chunks that Redis did not take."},
    {&RedisTierStats::too_large_puts, TierStat::Kind::kCounter, "too_large_puts",
     "Chunks with a section larger than the maximum value."},
    {&RedisTierStats::damaged_entries, TierStat::Kind::kCounter, "damaged",
     "Damaged chunks found in Redis, and removed."},
    {&RedisTierStats::incomplete_entries, TierStat::Kind::kCounter, "incomplete",
     "Chunks found in Redis without all their sections, and removed."},
    {&RedisTierStats::unsupported_entries, TierStat::Kind::kCounter, "unsupported",
     "Chunks found in Redis that a newer version wrote."},
    {&RedisTierStats::erased, TierStat::Kind::kCounter, "erased", "Chunks removed from Redis on request."},
    {&RedisTierStats::erase_failures, TierStat::Kind::kCounter, "erase_failures",
     "Chunks that could not be removed from Redis at once."},
    {&RedisTierStats::ttl_refreshes, TierStat::Kind::kCounter, "ttl_refreshes",
     "Chunks whose time in Redis was prolonged."},
    {&RedisTierStats::stale_anchors, TierStat::Kind::kCounter, "stale_anchors",
     "Names of chunks that are gone, taken out of the index of contents."},
    {&RedisTierStats::index_errors, TierStat::Kind::kCounter, "index_errors",
     "Chunks written that the index of contents does not name."},
    {&RedisTierStats::timeouts, TierStat::Kind::kCounter, "timeouts",
     "Connections to Redis that stopped answering."},
    {&RedisTierStats::connection_errors, TierStat::Kind::kCounter, "connection_errors",
     "Connections to Redis refused, closed or reset."},
    {&RedisTierStats::protocol_errors, TierStat::Kind::kCounter, "protocol_errors",
     "Connections to Redis ended for replies that are none."},
    {&RedisTierStats::error_replies, TierStat::Kind::kCounter, "error_replies",
     "Errors that Redis answered."},
    {&RedisTierStats::skipped_commands, TierStat::Kind::kCounter, "skipped_commands",
     "Commands not sent because their node does not work."},
    {&RedisTierStats::moved, TierStat::Kind::kCounter, "moved",
     "Redirections to the node that has a slot now."},
    {&RedisTierStats::asked, TierStat::Kind::kCounter, "asked",
     "Redirections to the node that a slot is moving to."},
    {&RedisTierStats::redirected_too_often, TierStat::Kind::kCounter, "redirected_too_often",
     "Commands given up after too many redirections."},
    {&RedisTierStats::breaker_opens, TierStat::Kind::kCounter, "breaker_opens",
     "How often a Redis node was found not to work."},
    {&RedisTierStats::topology_refreshes, TierStat::Kind::kCounter, "topology_refreshes",
     "How often the cluster's map of slots was read."},
    {&RedisTierStats::failed_topology_refreshes, TierStat::Kind::kCounter, "failed_topology_refreshes",
     "How often no node told the map of slots."},
};

}  // namespace kvblend::store
