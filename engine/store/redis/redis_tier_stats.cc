#include "engine/store/redis/redis_tier_stats.h"

namespace kvblend::store {

TierStats Report(const RedisTierStats& stats) {
  TierStats report{.tier = Tier::kRedis, .failing = !stats.connected, .values = {}};
  const auto add = [&](TierStat::Kind kind, std::string_view name, std::string_view help, auto value) {
    report.values.push_back({.name = name, .help = help, .kind = kind, .value = static_cast<double>(value)});
  };
  const auto gauge = [&](auto... rest) { add(TierStat::Kind::kGauge, rest...); };
  const auto counter = [&](auto... rest) { add(TierStat::Kind::kCounter, rest...); };
  gauge("nodes", "Redis nodes known.", stats.nodes.size());
  gauge("nodes_working", "Redis nodes that are asked; the others are left alone until they answer again.",
        stats.nodes_working());
  counter("lookups", "Chunks looked up in Redis.", stats.lookups);
  counter("hits", "Lookups in Redis that found their chunk.", stats.hits);
  counter("misses", "Lookups in Redis that found nothing usable.", stats.misses);
  counter("lookup_errors", "Lookups in Redis without an answer in time.", stats.lookup_errors);
  counter("lookup_seconds", "Time that lookups waited for Redis.", stats.lookup_seconds);
  counter("reads", "Layers read from Redis and found right.", stats.reads);
  counter("read_bytes", "Bytes of layers read from Redis.", stats.read_bytes);
  counter("read_errors", "Layers that could not be read from Redis, damage included.", stats.read_errors);
  counter("read_seconds", "Time from asking for a layer to having it, of all layers.", stats.read_seconds);
  counter("puts", "Chunks written to Redis.", stats.puts);
  counter("put_bytes", "Bytes of chunks written to Redis.", stats.put_bytes);
  counter("put_seconds", "Time that writing chunks to Redis took.", stats.put_seconds);
  counter("duplicate_puts", "Chunks to be written that Redis had already.", stats.duplicate_puts);
  counter("put_failures", "Chunks that Redis did not take.", stats.put_failures);
  counter("too_large_puts", "Chunks with a section larger than the maximum value.", stats.too_large_puts);
  counter("damaged", "Damaged chunks found in Redis, and removed.", stats.damaged_entries);
  counter("incomplete", "Chunks found in Redis without all their sections, and removed.",
          stats.incomplete_entries);
  counter("unsupported", "Chunks found in Redis that a newer version wrote.", stats.unsupported_entries);
  counter("erased", "Chunks removed from Redis on request.", stats.erased);
  counter("erase_failures", "Chunks that could not be removed from Redis at once.", stats.erase_failures);
  counter("ttl_refreshes", "Chunks whose time in Redis was prolonged.", stats.ttl_refreshes);
  counter("stale_anchors", "Names of chunks that are gone, taken out of the index of contents.",
          stats.stale_anchors);
  counter("index_errors", "Chunks written that the index of contents does not name.", stats.index_errors);
  counter("timeouts", "Connections to Redis that stopped answering.", stats.timeouts);
  counter("connection_errors", "Connections to Redis refused, closed or reset.", stats.connection_errors);
  counter("protocol_errors", "Connections to Redis ended for replies that are none.", stats.protocol_errors);
  counter("error_replies", "Errors that Redis answered.", stats.error_replies);
  counter("skipped_commands", "Commands not sent because their node does not work.", stats.skipped_commands);
  counter("moved", "Redirections to the node that has a slot now.", stats.moved);
  counter("asked", "Redirections to the node that a slot is moving to.", stats.asked);
  counter("redirected_too_often", "Commands given up after too many redirections.",
          stats.redirected_too_often);
  counter("breaker_opens", "How often a Redis node was found not to work.", stats.breaker_opens);
  counter("topology_refreshes", "How often the cluster's map of slots was read.", stats.topology_refreshes);
  counter("failed_topology_refreshes", "How often no node told the map of slots.",
          stats.failed_topology_refreshes);
  return report;
}

}  // namespace kvblend::store
