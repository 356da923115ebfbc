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

using Labels = std::vector<ClientMetric::Label>;

/// Adds the families of one part, whose names share a prefix.
class FamilyList {
 public:
  FamilyList(std::string prefix, std::vector<MetricFamily>* families)
      : prefix_(std::move(prefix)), families_(*families) {}

  template <typename Value>
  void Gauge(std::string_view name, std::string_view help, Value value, Labels labels = {}) {
    ClientMetric& metric = Family(name, help, MetricType::Gauge).emplace_back();
    metric.gauge.value = static_cast<double>(value);
    metric.label = std::move(labels);
  }
  template <typename Value>
  void Counter(std::string_view name, std::string_view help, Value value) {
    Family(name, help, MetricType::Counter).emplace_back().counter.value = static_cast<double>(value);
  }
  /// A family without values: the caller adds them.
  std::vector<ClientMetric>& Family(std::string_view name, std::string_view help, MetricType type) {
    families_.push_back({prefix_ + std::string(name), std::string(help), type, {}});
    return families_.back().metric;
  }

 private:
  const std::string prefix_;
  std::vector<MetricFamily>& families_;
};

double Seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; }

// The names that every Prometheus client library gives to these.
void AddProcess(double start_unix_seconds, FamilyList list) {
  list.Gauge("start_time_seconds", "Start time of the process since 1970-01-01 UTC in seconds.",
             start_unix_seconds);
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    list.Counter("cpu_seconds_total", "User and system CPU time spent in seconds.",
                 Seconds(usage.ru_utime) + Seconds(usage.ru_stime));
  }
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0, resident_pages = 0;
  if (statm >> total_pages >> resident_pages) {
    list.Gauge("resident_memory_bytes", "Resident memory size in bytes.",
               static_cast<double>(resident_pages) * static_cast<double>(sysconf(_SC_PAGESIZE)));
  }
}

void AddEngine(const EngineStats& stats, FamilyList list) {
  list.Gauge("num_requests_running", "Requests being worked on.", stats.requests_running);
  list.Gauge("num_requests_waiting", "Requests waiting for their turn.", stats.requests_waiting);
  list.Gauge("num_sequences_decoding",
             "Answers being decoded together; more than max-batch-size take turns in the steps.",
             stats.sequences_decoding);
  list.Counter("decode_steps_total", "Steps of decoding, each a token for every answer in it.",
               stats.decode_steps);
  list.Counter("decoded_tokens_total",
               "Tokens of those steps; over kvblend_decode_steps_total: answers per step.",
               stats.decoded_tokens);
  list.Counter("num_preemptions_total", "Answers that gave their KV pages up to others, to go on later.",
               stats.preemptions);
  list.Counter("prompt_slices_total", "Runs of work on prompts and chunks between two steps of decoding.",
               stats.prompt_slices);
  list.Counter("prompt_slice_seconds_total", "How long these took together.", stats.prompt_slice_seconds);
  list.Counter("drafted_tokens_total",
               "Tokens of answers that were guessed from their prompts and checked in a step of decoding.",
               stats.drafted_tokens);
  list.Counter("accepted_draft_tokens_total",
               "Guessed tokens that were right: steps of decoding that an answer was spared.",
               stats.accepted_draft_tokens);
  list.Gauge("num_tokens_waiting", "Tokens of the requests waiting for their turn.",
             static_cast<double>(stats.tokens_waiting));
  list.Gauge(
      "predicted_wait_seconds",
      "How long the waiting requests are predicted to take together; half of it is what refused ones are told to wait.",
      stats.predicted_wait_seconds);
  list.Gauge("num_background_unfinished", "Chunk computations behind responses that are not done.",
             stats.background_unfinished);
  list.Gauge("kv_pages_used", "KV pages in use.", stats.pages_used);
  list.Gauge("kv_pages_kept",
             "KV pages that conversations between two turns take; free for whoever needs them.",
             stats.pages_kept);
  list.Gauge("kv_pages_shared", "KV pages that several sequences hold together.", stats.pages_shared);
  list.Gauge("kept_conversations", "Conversations kept between two turns.", stats.kept_conversations);
  list.Counter("kept_conversations_taken_total", "Prompts that went on from a kept conversation.",
               stats.kept_conversations_taken);
  list.Counter("kept_conversations_evicted_total", "Kept conversations dropped for want of KV pages.",
               stats.kept_conversations_evicted);
  list.Counter("refined_tokens_total",
               "Tokens of kept conversations that were prefilled in full while there was nothing else to do.",
               stats.refined_tokens);
  list.Counter("kv_pages_dropped_total",
               "KV pages that answers gave back because no window of their layers reaches them any more.",
               static_cast<double>(stats.pages_dropped));
  list.Gauge("kv_pages_capacity", "KV pages reserved at the start.", stats.pages_total);
  list.Gauge("kv_page_bytes", "Memory of a KV page.", static_cast<double>(stats.page_bytes));
  list.Gauge("kv_pages_used_ratio", "Share of the KV pages that is in use, 0 to 1.",
             stats.pages_total == 0 ? 0.0 : static_cast<double>(stats.pages_used) / stats.pages_total);
  if (stats.device_memory.has_value()) {
    list.Gauge("device_memory_used_bytes", "GPU memory in use, by all processes.",
               stats.device_memory->used_bytes);
    list.Gauge("device_memory_capacity_bytes", "GPU memory.", stats.device_memory->total_bytes);
  }
  list.Counter("background_chunks_stored_total", "Chunks computed behind responses and stored.",
               stats.background_chunks_stored);
  list.Counter(
      "background_chunks_failed_total",
      "Chunks that were not computed behind a response because too many waited for that, or could not be computed or "
      "stored. The log says why.",
      stats.background_chunks_failed);
}

void AddLoading(const LoadingStats& stats, FamilyList list) {
  std::vector<ClientMetric>& rates =
      list.Family("read_bandwidth_bytes_per_second",
                  "How fast stored KV is read from a tier below main memory, median of the last reads.",
                  MetricType::Gauge);
  for (const auto& [tier, bytes_per_second] : stats.read_bytes_per_second) {
    ClientMetric& metric = rates.emplace_back();
    metric.gauge.value = bytes_per_second;
    metric.label = {{"tier", std::string(Name(tier))}};
  }
  list.Gauge("compute_seconds_per_token",
             "What one token costs through all layers in the middle of 4096 tokens, as measured.",
             stats.compute_seconds_per_token);
  list.Gauge("place_seconds_per_token",
             "Copying one token's stored KV from main memory into pages, as measured.",
             stats.place_seconds_per_token);
}

// Per layer; no sample before something was measured.
void AddLayers(std::string_view name, std::string_view help, const std::vector<double>& values,
               FamilyList& list) {
  std::vector<ClientMetric>& layers = list.Family(name, help, MetricType::Gauge);
  for (size_t layer = 0; layer < values.size(); ++layer) {
    ClientMetric& metric = layers.emplace_back();
    metric.gauge.value = values[layer];
    metric.label = {{"layer", std::to_string(layer)}};
  }
}

void AddCorrection(const CorrectionStats& stats, FamilyList list) {
  list.Gauge("info", "The learned correction of stored KV in force; the value is 1, or 0 without one.",
             !stats.version.empty(),
             {{"version", stats.version},
              {"origin", stats.version.empty() ? "none"
                         : stats.learned       ? "learned"
                                               : "given"}});
  list.Gauge("learning", "1 while the correction is learned while serving, 0 where that is frozen or off.",
             stats.learning == LearningState::kOn);
  list.Gauge("tokens", "Tokens whose stored and fresh KV the correction was learned from, restarts included.",
             stats.tokens);
  list.Gauge("fitted_chunks", "Chunks of these tokens that fits are made from.", stats.fitted_chunks);
  list.Gauge("kept_back_chunks", "Chunks of these tokens that judge the fits.", stats.kept_back_chunks);
  list.Gauge("waiting_chunks", "Chunks that wait to be learned from.", stats.waiting_chunks);
  list.Counter("fits_total", "Fits of the correction tried.", stats.fits);
  list.Counter("fits_applied_total", "Fits that were better than what was in force, and came into force.",
               stats.fits_applied);
  list.Gauge("shared", "1 where replicas share what the correction is learned from, through Redis.",
             stats.shared);
  list.Gauge("replicas_found", "Other replicas whose moments fits take, as of the last look.",
             stats.replicas_found);
  list.Gauge("replicas_merged", "Other replicas whose moments the last fit had.", stats.replicas_merged);
  list.Counter("moments_published_total", "Times that the server's own moments were left for other replicas.",
               stats.moments_published);
  list.Counter("moments_refused_total",
               "Moments of other replicas not taken: damaged, foreign, incomplete or out of date.",
               stats.moments_refused);
  list.Counter("sharing_failures_total", "Times that moments could not be written to Redis, or read.",
               stats.sharing_failures);
  AddLayers(
      "deviation_before",
      "Mean squared deviation of stored KV from full prefill's on chunks kept back, relative to the latter.",
      stats.deviation_before, list);
  AddLayers("deviation_after", "The same with the correction in force.", stats.deviation_after, list);
}

void AddStore(const StoreStats& stats, FamilyList list) {
  list.Gauge("entries", "Chunks in the store.", stats.entries);
  list.Gauge("bytes", "Bytes in use by the chunk store.", stats.bytes);
  list.Gauge("budget_bytes", "Bytes that the chunk store may use.", stats.byte_budget);
  list.Gauge("idle_bytes", "Bytes of the chunk store that could be evicted at once.", stats.idle_bytes);
  list.Gauge("pinned_entries", "Chunks pinned in the store.", stats.pinned_entries);
  list.Gauge("pinned_bytes", "Bytes of pinned chunks.", stats.pinned_bytes);
  list.Gauge("reservations", "Chunks being computed for the store.", stats.reservations);
  list.Counter("lookups_total", "Lookups by prompts by exact key, of chunks and of their anchors.",
               stats.lookups);
  list.Counter("hits_total", "Lookups by prompts that found their chunk or anchor.", stats.hits);
  list.Counter("misses_total", "Lookups by prompts that found nothing.", stats.misses);
  list.Counter("reserve_lookups_total", "Chunks that precomputation looked up.", stats.reserve_lookups);
  list.Counter("reserve_hits_total", "Lookups by precomputation that found their chunk.", stats.reserve_hits);
  list.Counter("reservations_total", "Computations of chunks begun.", stats.reservations_made);
  list.Counter("waits_total", "Lookups by precomputation told to wait for another's computation.",
               stats.waits);
  list.Counter("other_anchor_lookups_total", "Lookups of a chunk behind any anchor.",
               stats.other_anchor_lookups);
  list.Counter("other_anchor_hits_total", "Lookups that found their chunk behind another anchor.",
               stats.other_anchor_hits);
  list.Counter("insertions_total", "Chunks stored.", stats.insertions);
  list.Counter("inserted_bytes_total", "Bytes stored.", stats.inserted_bytes);
  list.Counter("duplicate_insertions_total", "Chunks computed that were already in the store.",
               stats.duplicate_insertions);
  list.Counter("rejected_insertions_total", "Chunks that did not fit.", stats.rejected_insertions);
  list.Counter("evictions_total", "Chunks evicted to make room.", stats.evictions);
  list.Counter("evicted_bytes_total", "Bytes evicted to make room.", stats.evicted_bytes);
  list.Counter("erased_total", "Chunks removed on request.", stats.erased);
  list.Counter("lower_hits_total", "Lookups that found their chunk below main memory.", stats.lower_hits);
  list.Counter("prefetched_total", "Chunks read from below main memory ahead of the prompts that need them.",
               stats.prefetched);
  list.Counter("failed_entries_total", "Chunks below main memory that could not be read to their end.",
               stats.failed_entries);
  list.Gauge("queued_writes", "Chunks on their way to disk and Redis.", stats.queued_writes);
  list.Gauge("queued_write_bytes", "Bytes of chunks on their way to disk and Redis.",
             stats.queued_write_bytes);
  list.Counter("written_entries_total", "Chunks written to disk and Redis.", stats.written_entries);
  list.Counter("dropped_writes_total", "Chunks not written because too many were on their way.",
               stats.dropped_writes);
  list.Counter("failed_writes_total", "Chunks that disk or Redis did not take.", stats.failed_writes);
}

// A tier lists its own: kvblend_disk_puts_total, kvblend_redis_nodes, ...
void AddTier(const TierStats& tier, FamilyList list) {
  for (const TierStat& stat : tier.values) {
    if (stat.kind == TierStat::Kind::kGauge) {
      list.Gauge(stat.name, stat.help, stat.value);
    } else {
      list.Counter(std::string(stat.name) + "_total", stat.help, stat.value);
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

std::string EngineCollectable::model_name() const {
  absl::MutexLock lock(&mutex_);
  return info_ ? info_->model_name : "";
}

std::vector<prometheus::MetricFamily> EngineCollectable::Collect() const {
  std::vector<MetricFamily> families;
  AddProcess(start_unix_seconds_, {"process_", &families});
  FamilyList list("kvblend_", &families);
  absl::MutexLock lock(&mutex_);
  list.Gauge("ready", "1 while requests are accepted, 0 while starting or shutting down.", ready_);
  if (info_) {
    list.Gauge("build_info", "What is running; the value is always 1.", 1,
               {{"version", info_->version},
                {"model", info_->model_name},
                {"model_fingerprint", info_->model_fingerprint},
                {"backend", info_->backend},
                {"kv_dtype", info_->kv_dtype},
                {"chunk_format", info_->chunk_format}});
    list.Gauge("device_info", "What computes; the value is always 1.", 1,
               {{"device", info_->device}, {"name", info_->device_name}});
  }
  if (stats_) {
    const EngineStats stats = stats_();
    AddEngine(stats, list);
    AddLoading(stats.loading, list);
    AddCorrection(stats.correction, {"kvblend_correction_", &families});
    AddStore(stats.store, {"kvblend_store_", &families});
    for (const TierStats& tier : stats.tiers) {
      AddTier(tier, {"kvblend_" + std::string(Name(tier.tier)) + "_", &families});
    }
  }
  return families;
}

}  // namespace kvblend::server
