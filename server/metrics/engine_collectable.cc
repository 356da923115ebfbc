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

void AddStore(const StoreStats& stats, FamilyList* list) {
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

// A tier lists its own: kvblend_disk_puts_total, kvblend_redis_nodes, ...
void AddTier(const TierStats& tier, FamilyList* list) {
  for (const TierStat& stat : tier.values) {
    std::string name = "kvblend_";
    name.append(Name(tier.tier)).append("_").append(stat.name);
    if (stat.kind == TierStat::Kind::kGauge) {
      list->AddGauge(std::move(name), std::string(stat.help), stat.value);
    } else {
      list->AddCounter(name.append("_total"), std::string(stat.help), stat.value);
    }
  }
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
    for (const TierStats& tier : stats.tiers) AddTier(tier, &list);
  }
  return list.Take();
}

}  // namespace kvblend::server
