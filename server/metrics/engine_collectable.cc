#include "server/metrics/engine_collectable.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "prometheus/client_metric.h"
#include "prometheus/metric_type.h"

namespace kvblend::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

class FamilyList {
 public:
  void AddGauge(std::string name, std::string help, double value,
                std::vector<ClientMetric::Label> label = {}) {
    ClientMetric metric;
    metric.gauge.value = value;
    metric.label = std::move(label);
    Append(std::move(name), std::move(help), MetricType::Gauge, std::move(metric));
  }
  /// One gauge per label; none: the family without values.
  void AddGauges(std::string name, std::string help, std::vector<ClientMetric> metrics) {
    families_.push_back({std::move(name), std::move(help), MetricType::Gauge, std::move(metrics)});
  }
  void AddCounter(std::string name, std::string help, double value) {
    ClientMetric metric;
    metric.counter.value = value;
    Append(std::move(name), std::move(help), MetricType::Counter, std::move(metric));
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  void Append(std::string name, std::string help, MetricType type, ClientMetric metric) {
    families_.push_back({std::move(name), std::move(help), type, {std::move(metric)}});
  }
  std::vector<MetricFamily> families_;
};

/// Two functions that add a gauge and a counter: what all metrics of one part of the engine are made with.
auto Prefixed(const char* prefix, FamilyList* list) {
  return std::pair(
      [=](const char* name, std::string help, auto value) {
        list->AddGauge(std::string(prefix) + name, std::move(help), static_cast<double>(value));
      },
      [=](const char* name, std::string help, auto value) {
        list->AddCounter(std::string(prefix) + name, std::move(help), static_cast<double>(value));
      });
}

double Seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; }

// The names that every Prometheus client library gives to these.
void AddProcess(double start_unix_seconds, FamilyList* list) {
  list->AddGauge("process_start_time_seconds", "Start time of the process since 1970-01-01 UTC in seconds.",
                 start_unix_seconds);
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    list->AddCounter("process_cpu_seconds_total", "User and system CPU time spent in seconds.",
                     Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  }
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  if (statm >> total_pages >> resident_pages) {
    list->AddGauge("process_resident_memory_bytes", "Resident memory size in bytes.",
                   static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
}

void AddEngine(const EngineStats& stats, FamilyList* list) {
  list->AddGauge("kvblend_num_requests_running", "Requests being worked on.", stats.requests_running);
  list->AddGauge("kvblend_num_requests_waiting", "Requests waiting for their turn.", stats.requests_waiting);
  list->AddGauge("kvblend_num_sequences_decoding", "Answers being decoded together, one token each per step.",
                 stats.sequences_decoding);
  list->AddCounter("kvblend_decode_steps_total", "Steps of decoding, each a token for every answer in it.",
                   static_cast<double>(stats.decode_steps));
  list->AddCounter("kvblend_decoded_tokens_total",
                   "Tokens of those steps; over kvblend_decode_steps_total: answers per step.",
                   static_cast<double>(stats.decoded_tokens));
  list->AddGauge("kvblend_num_background_waiting", "Chunk computations waiting behind responses.",
                 stats.background_waiting);
  list->AddGauge("kvblend_kv_pages_used", "KV pages in use.", stats.pages_used);
  list->AddGauge("kvblend_kv_pages_capacity", "KV pages reserved at the start.", stats.pages_total);
  list->AddGauge("kvblend_kv_pages_used_ratio", "Share of the KV pages that is in use, 0 to 1.",
                 stats.pages_total == 0 ? 0.0 : static_cast<double>(stats.pages_used) / stats.pages_total);
  if (stats.device_memory.has_value()) {
    list->AddGauge("kvblend_device_memory_used_bytes", "GPU memory in use, by all processes.",
                   static_cast<double>(stats.device_memory->used_bytes));
    list->AddGauge("kvblend_device_memory_capacity_bytes", "GPU memory.",
                   static_cast<double>(stats.device_memory->total_bytes));
  }
  list->AddCounter("kvblend_background_chunks_stored_total", "Chunks computed behind responses and stored.",
                   static_cast<double>(stats.background_chunks_stored));
  list->AddCounter("kvblend_background_chunks_failed_total",
                   "Chunks that could not be computed behind a response, or not stored.",
                   static_cast<double>(stats.background_chunks_failed));
}

void AddLoading(const LoadingStats& stats, FamilyList* list) {
  std::vector<ClientMetric> tiers;
  for (const auto& [tier, bytes_per_second] : stats.read_bytes_per_second) {
    ClientMetric& metric = tiers.emplace_back();
    metric.gauge.value = bytes_per_second;
    metric.label = {{"tier", std::string(Name(tier))}};
  }
  list->AddGauges("kvblend_read_bandwidth_bytes_per_second",
                  "How fast stored KV is read from a tier below main memory, median of the last reads.",
                  std::move(tiers));
  list->AddGauge("kvblend_compute_seconds_per_token",
                 "What one token costs through all layers in the middle of 4096 tokens, as measured.",
                 stats.compute_seconds_per_token);
  list->AddGauge("kvblend_place_seconds_per_token",
                 "Copying one token's stored KV from main memory into pages, as measured.",
                 stats.place_seconds_per_token);
}

void AddStore(const store::StoreStats& stats, FamilyList* list) {
  const auto [gauge, counter] = Prefixed("kvblend_store_", list);
  gauge("entries", "Chunks in the store.", stats.entries);
  gauge("bytes", "Bytes in use by the chunk store.", stats.bytes);
  gauge("budget_bytes", "Bytes that the chunk store may use.", stats.byte_budget);
  gauge("idle_bytes", "Bytes of the chunk store that could be evicted at once.", stats.idle_bytes);
  gauge("pinned_entries", "Chunks pinned in the store.", stats.pinned_entries);
  gauge("pinned_bytes", "Bytes of pinned chunks.", stats.pinned_bytes);
  gauge("reservations", "Chunks being computed for the store.", stats.reservations);
  counter("lookups_total", "Chunks that prompts looked up by exact key.", stats.lookups);
  counter("hits_total", "Lookups by prompts that found their chunk.", stats.hits);
  counter("misses_total", "Lookups by prompts that found nothing.", stats.misses);
  counter("reserve_lookups_total", "Chunks that precomputation looked up.", stats.reserve_lookups);
  counter("reserve_hits_total", "Lookups by precomputation that found their chunk.", stats.reserve_hits);
  counter("reservations_total", "Computations of chunks begun.", stats.reservations_made);
  counter("waits_total", "Lookups by precomputation told to wait for another's computation.", stats.waits);
  counter("other_anchor_lookups_total", "Lookups of a chunk behind any anchor.", stats.other_anchor_lookups);
  counter("other_anchor_hits_total", "Lookups that found their chunk behind another anchor.",
          stats.other_anchor_hits);
  counter("insertions_total", "Chunks stored.", stats.insertions);
  counter("inserted_bytes_total", "Bytes stored.", stats.inserted_bytes);
  counter("duplicate_insertions_total", "Chunks computed that were already in the store.",
          stats.duplicate_insertions);
  counter("rejected_insertions_total", "Chunks that did not fit.", stats.rejected_insertions);
  counter("evictions_total", "Chunks evicted to make room.", stats.evictions);
  counter("evicted_bytes_total", "Bytes evicted to make room.", stats.evicted_bytes);
  counter("erased_total", "Chunks removed on request.", stats.erased);
  counter("lower_hits_total", "Lookups that found their chunk below main memory.", stats.lower_hits);
  counter("prefetched_total", "Chunks read from below main memory ahead of the prompts that need them.",
          stats.prefetched);
  counter("failed_entries_total", "Chunks below main memory that could not be read to their end.",
          stats.failed_entries);
  gauge("queued_writes", "Chunks on their way to disk and Redis.", stats.queued_writes);
  gauge("queued_write_bytes", "Bytes of chunks on their way to disk and Redis.", stats.queued_write_bytes);
  counter("written_entries_total", "Chunks written to disk and Redis.", stats.written_entries);
  counter("dropped_writes_total", "Chunks not written because too many were on their way.",
          stats.dropped_writes);
  counter("failed_writes_total", "Chunks that disk or Redis did not take.", stats.failed_writes);
}

void AddDisk(const store::DiskTierStats& stats, FamilyList* list) {
  const auto [gauge, counter] = Prefixed("kvblend_disk_", list);
  gauge("entries", "Chunks on disk.", stats.entries);
  gauge("bytes", "Bytes of chunks on disk.", stats.bytes);
  gauge("quota_bytes", "Bytes that chunks may take on disk.", stats.quota_bytes);
  gauge("pinned_entries", "Chunks pinned on disk.", stats.pinned_entries);
  gauge("quarantined_files", "Damaged files set aside.", stats.quarantined_files);
  gauge("full", "1 when the last write found no space.", stats.disk_full ? 1 : 0);
  gauge("write_failing", "1 when the last write failed.", stats.write_failing ? 1 : 0);
  gauge("read_failing", "1 when the last read failed.", stats.read_failing ? 1 : 0);
  counter("puts_total", "Chunks written to disk.", stats.puts);
  counter("put_bytes_total", "Bytes of chunks written to disk.", stats.put_bytes);
  counter("put_failures_total", "Chunks not written because the disk was full or failed.",
          stats.put_failures);
  counter("put_rejections_total", "Chunks too large for the quota beside what is pinned.",
          stats.put_rejections);
  counter("evictions_total", "Chunks evicted from disk.", stats.evictions);
  counter("evicted_bytes_total", "Bytes of chunks evicted from disk.", stats.evicted_bytes);
  counter("opens_total", "Chunks opened for reading.", stats.opens);
  counter("reads_total", "Layers read and found right.", stats.reads);
  counter("read_bytes_total", "Bytes of layers read.", stats.read_bytes);
  counter("read_errors_total", "Reads that failed, damage included.", stats.read_errors);
  counter("quarantined_total", "Damaged chunks found on disk.", stats.quarantined);
  counter("delete_failures_total", "Files of chunks that could not be removed.", stats.delete_failures);
}

void AddRedis(const store::RedisTierStats& stats, FamilyList* list) {
  const auto [gauge, counter] = Prefixed("kvblend_redis_", list);
  gauge("nodes", "Redis nodes known.", static_cast<double>(stats.nodes.size()));
  gauge("nodes_working", "Redis nodes that are asked; the others are left alone until they answer again.",
        stats.nodes_working());
  counter("lookups_total", "Chunks looked up in Redis.", stats.lookups);
  counter("hits_total", "Lookups in Redis that found their chunk.", stats.hits);
  counter("misses_total", "Lookups in Redis that found nothing usable.", stats.misses);
  counter("lookup_errors_total", "Lookups in Redis without an answer in time.", stats.lookup_errors);
  counter("lookup_seconds_total", "Time that lookups waited for Redis.", stats.lookup_seconds);
  counter("reads_total", "Layers read from Redis and found right.", stats.reads);
  counter("read_bytes_total", "Bytes of layers read from Redis.", stats.read_bytes);
  counter("read_errors_total", "Layers that could not be read from Redis, damage included.",
          stats.read_errors);
  counter("read_seconds_total", "Time from asking for a layer to having it, of all layers.",
          stats.read_seconds);
  counter("puts_total", "Chunks written to Redis.", stats.puts);
  counter("put_bytes_total", "Bytes of chunks written to Redis.", stats.put_bytes);
  counter("put_seconds_total", "Time that writing chunks to Redis took.", stats.put_seconds);
  counter("duplicate_puts_total", "Chunks to be written that Redis had already.", stats.duplicate_puts);
  counter("put_failures_total", "Chunks that Redis did not take.", stats.put_failures);
  counter("too_large_puts_total", "Chunks with a section larger than the maximum value.",
          stats.too_large_puts);
  counter("damaged_total", "Damaged chunks found in Redis, and removed.", stats.damaged_entries);
  counter("incomplete_total", "Chunks found in Redis without all their sections, and removed.",
          stats.incomplete_entries);
  counter("unsupported_total", "Chunks found in Redis that a newer version wrote.",
          stats.unsupported_entries);
  counter("erased_total", "Chunks removed from Redis on request.", stats.erased);
  counter("erase_failures_total", "Chunks that could not be removed from Redis at once.",
          stats.erase_failures);
  counter("ttl_refreshes_total", "Chunks whose time in Redis was prolonged.", stats.ttl_refreshes);
  counter("stale_anchors_total", "Names of chunks that are gone, taken out of the index of contents.",
          stats.stale_anchors);
  counter("index_errors_total", "Chunks written that the index of contents does not name.",
          stats.index_errors);
  counter("timeouts_total", "Connections to Redis that stopped answering.", stats.timeouts);
  counter("connection_errors_total", "Connections to Redis refused, closed or reset.",
          stats.connection_errors);
  counter("protocol_errors_total", "Connections to Redis ended for replies that are none.",
          stats.protocol_errors);
  counter("error_replies_total", "Errors that Redis answered.", stats.error_replies);
  counter("skipped_commands_total", "Commands not sent because their node does not work.",
          stats.skipped_commands);
  counter("moved_total", "Redirections to the node that has a slot now.", stats.moved);
  counter("asked_total", "Redirections to the node that a slot is moving to.", stats.asked);
  counter("redirected_too_often_total", "Commands given up after too many redirections.",
          stats.redirected_too_often);
  counter("breaker_opens_total", "How often a Redis node was found not to work.", stats.breaker_opens);
  counter("topology_refreshes_total", "How often the cluster's map of slots was read.",
          stats.topology_refreshes);
  counter("failed_topology_refreshes_total", "How often no node told the map of slots.",
          stats.failed_topology_refreshes);
}

}  // namespace

EngineCollectable::EngineCollectable()
    : start_unix_seconds_(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch())) {}

void EngineCollectable::Set(const EngineInfo& info, std::function<EngineStats()> stats) {
  absl::MutexLock lock(&mutex_);
  info_ = info;
  stats_ = std::move(stats);
}

void EngineCollectable::Reset() {
  absl::MutexLock lock(&mutex_);
  stats_ = nullptr;
}

void EngineCollectable::SetReady(bool ready) {
  absl::MutexLock lock(&mutex_);
  ready_ = ready;
}

std::vector<prometheus::MetricFamily> EngineCollectable::Collect() const {
  FamilyList list;
  AddProcess(start_unix_seconds_, &list);
  absl::MutexLock lock(&mutex_);
  list.AddGauge("kvblend_ready", "1 while requests are accepted, 0 while starting or shutting down.", ready_);
  if (info_) {
    list.AddGauge("kvblend_build_info", "What is running; the value is always 1.", 1,
                  {{"version", info_->version},
                   {"model", info_->model_name},
                   {"model_fingerprint", info_->model_fingerprint},
                   {"backend", info_->backend},
                   {"kv_dtype", info_->kv_dtype},
                   {"chunk_format", info_->chunk_format}});
    list.AddGauge("kvblend_device_info", "What computes; the value is always 1.", 1,
                  {{"device", info_->device}, {"name", info_->device_name}});
  }
  if (stats_) {
    const EngineStats stats = stats_();
    AddEngine(stats, &list);
    AddLoading(stats.loading, &list);
    AddStore(stats.store, &list);
    if (stats.disk.has_value()) AddDisk(*stats.disk, &list);
    if (stats.redis.has_value()) AddRedis(*stats.redis, &list);
  }
  return list.Take();
}

}  // namespace kvblend::server
