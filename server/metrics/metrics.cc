#include "server/metrics/metrics.h"

#include <iterator>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "server/convert/enums.h"
#include "server/metrics/engine_collectable.h"
#include "server/metrics/vllm_names.h"

namespace kvblend::server {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

Family<Histogram>& AddHistograms(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}

Histogram& AddHistogram(prometheus::Registry& registry, const char* name, const char* help,
                        const Buckets& buckets) {
  return AddHistograms(registry, name, help).Add({}, buckets);
}

Family<Counter>& AddCounters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

}  // namespace

struct Metrics::Impl {
  std::vector<prometheus::MetricFamily> Collect() const;

  prometheus::Registry registry;
  EngineCollectable engine;
  std::function<std::map<std::string, TenantCounts>()> tenants;  // null: there are none

  // The first three have all boundaries of vLLM's, which dashboards expect, and more below, where reuse makes
  // requests faster than those expect.
  const Buckets first_token_seconds = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                       1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  const Buckets request_seconds = {.01, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,   10,
                                   15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  const Buckets output_token_seconds = {.001, .0025, .005, .01, .015, .02, .025, .03, .04, .05, .075, .1, .15,
                                        .2,   .3,    .4,   .5,  .75,  1,   2.5,  5,   7.5, 10,  20,   40, 80};
  // Parts of the time to the first token: those that take long on a busy server, and the others. The former
  // have all of vLLM's boundaries too.
  const Buckets wait_seconds = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1,   .2,
                                .25,   .3,     .5,    .8,   1,     1.5,  2,   2.5,  5,   10,   15,
                                20,    30,     40,    50,   60,    120,  240, 480,  960, 1920, 7680};
  const Buckets stage_seconds = {.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1,
                                 .25,   .5,     1,     2,    2.5,   5,    10,  30,   60};
  const Buckets token_counts = {1,   2,    5,    10,   20,    50,    100,   200,
                                500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};
  const Buckets ratios = {0, .01, .02, .05, .1, .15, .2, .25, .3, .4, .5, .6, .7, .8, .9, 1};

  // Predicted over actual: 1 is right, 2 is twice as long as it took.
  const Buckets quotients = {.1, .25, .5, .67, .8, .9, .95, 1, 1.05, 1.1, 1.25, 1.5, 2, 4, 10};

  Histogram& first_token = AddHistogram(
      registry, "kvblend_time_to_first_token_seconds",
      "From the request's arrival to its first token, for Generate and Score.", first_token_seconds);
  Histogram& per_token =
      AddHistogram(registry, "kvblend_time_per_output_token_seconds",
                   "Mean time per generated token after the first, per request.", output_token_seconds);
  Histogram& inter_token = AddHistogram(
      registry, "kvblend_inter_token_latency_seconds",
      "From one arrival of an answer's tokens to the next, as they are sent; guessed tokens arrive together.",
      output_token_seconds);
  Histogram& latency = AddHistogram(registry, "kvblend_e2e_request_latency_seconds",
                                    "From a Generate request's arrival to its last token.", request_seconds);
  Histogram& queue =
      AddHistogram(registry, "kvblend_request_queue_time_seconds",
                   "Time that a request waited for its turn, or until it was given up.", wait_seconds);
  Histogram& lookup = AddHistogram(registry, "kvblend_request_lookup_time_seconds",
                                   "Tokenization, layout and store lookups per prompt.", stage_seconds);
  Histogram& stall = AddHistogram(
      registry, "kvblend_request_stall_time_seconds",
      "Waiting for stored KV from a slower tier per prompt, part of the load time.", stage_seconds);
  Histogram& load = AddHistogram(registry, "kvblend_request_load_time_seconds",
                                 "Copying stored KV into pages per prompt.", stage_seconds);
  Histogram& select = AddHistogram(registry, "kvblend_request_select_time_seconds",
                                   "Choosing the tokens to recompute per prompt.", stage_seconds);
  Histogram& prefill =
      AddHistogram(registry, "kvblend_request_prefill_time_seconds",
                   "Forward passes up to the first token per prompt, selection excluded.", wait_seconds);
  Histogram& others =
      AddHistogram(registry, "kvblend_request_others_time_seconds",
                   "Others' turns between those of a prompt, up to its first token.", wait_seconds);
  Histogram& prompt_tokens =
      AddHistogram(registry, "kvblend_request_prompt_tokens", "Tokens of a prompt.", token_counts);
  Histogram& generation_tokens =
      AddHistogram(registry, "kvblend_request_generation_tokens",
                   "Tokens generated per request that came to its end.", token_counts);
  Histogram& chunk_compute = AddHistogram(registry, "kvblend_chunk_compute_time_seconds",
                                          "Computing one chunk for Chunks.Put.", stage_seconds);

  Family<Histogram>& ratio =
      AddHistograms(registry, "kvblend_recompute_ratio",
                    "Recomputed share of the reusable, inexact tokens of a prompt, by selection policy.");
  Family<Histogram>& chosen_ratio = AddHistograms(
      registry, "kvblend_chosen_ratio",
      "The ratio that the policy was given for a prompt with stored chunks, by who set it: fixed or "
      "auto, the loading controller.");
  Histogram& prediction = AddHistogram(
      registry, "kvblend_prefill_prediction_ratio",
      "The loading controller's prediction of a prompt's load, select and prefill time over the actual one.",
      quotients);
  Family<Counter>& bypassed =
      AddCounters(registry, "kvblend_bypassed_chunks_total",
                  "Stored chunks that were computed because loading them would have taken longer, by tier.");
  Family<Counter>& tokens_by_source = AddCounters(
      registry, "kvblend_prompt_tokens_total",
      "Prompt tokens by where their KV came from: kept (of an earlier turn), exact (reused as a prefix), reused "
      "(inexactly), recomputed (stored, but recomputed), computed (never stored).");
  Counter& kept_tokens = tokens_by_source.Add({{"source", "kept"}});
  Counter& exact_tokens = tokens_by_source.Add({{"source", "exact"}});
  Counter& reused_tokens = tokens_by_source.Add({{"source", "reused"}});
  Counter& recomputed_tokens = tokens_by_source.Add({{"source", "recomputed"}});
  Counter& computed_tokens = tokens_by_source.Add({{"source", "computed"}});
  Counter& prefix_queries =
      AddCounters(registry, "kvblend_prefix_cache_queries_total",
                  "Prompt tokens whose KV was looked for in pages of other sequences and of earlier turns.")
          .Add({});
  Counter& prefix_hits = AddCounters(registry, "kvblend_prefix_cache_hits_total",
                                     "Those found there: neither loaded nor computed.")
                             .Add({});
  Counter& generated_tokens = AddCounters(registry, "kvblend_generation_tokens_total",
                                          "Tokens generated, of answers that did not come to their end too.")
                                  .Add({});
  Counter& scored_tokens =
      AddCounters(registry, "kvblend_scored_tokens_total", "Continuation tokens scored.").Add({});
  Counter& chunk_lookups =
      AddCounters(registry, "kvblend_chunk_lookups_total", "Chunks of prompts looked up.").Add({});
  Family<Counter>& chunk_hits =
      AddCounters(registry, "kvblend_chunk_hits_total",
                  "Chunks of prompts found, by how they could be used and the tier they came from.");
  Family<Counter>& finished = AddCounters(registry, "kvblend_requests_finished_total",
                                          "Generate requests answered to their end, by reason.");
  Family<Counter>& calls = AddCounters(registry, "kvblend_grpc_calls_total",
                                       "Calls ended, by service, method and gRPC status code.");
  Family<Counter>& http_calls = AddCounters(registry, "kvblend_http_calls_total",
                                            "Calls over HTTP ended, by method and gRPC status code.");
  Family<Counter>& without_first_token = AddCounters(
      registry, "kvblend_requests_without_first_token_total",
      "Generate and Score requests that ended with an error before their first token, by gRPC code.");
  Family<Counter>& http_refused =
      AddCounters(registry, "kvblend_http_refused_total",
                  "Requests and connections that the HTTP API refused before any handler, by HTTP status.");
  Counter& http_evicted = AddCounters(registry, "kvblend_http_evicted_connections_total",
                                      "Idle connections that the HTTP API closed to make room for others.")
                              .Add({});
  Counter& grpc_refused = AddCounters(registry, "kvblend_grpc_refused_connections_total",
                                      "Connections that gRPC closed because there were too many.")
                              .Add({});
  Family<Counter>& put_chunks =
      AddCounters(registry, "kvblend_put_chunks_total",
                  "Chunks of Chunks.Put, by whether they were computed or present.");
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  // Label values that are known beforehand exist from the start, so that rates have a zero to start from.
  for (const auto& [reason, name] : NamesOf(FinishReason())) {
    impl_->finished.Add({{"reason", std::string(name)}});
  }
  for (ChunkSource source : {ChunkSource::kExact, ChunkSource::kBlended, ChunkSource::kOtherAnchor}) {
    for (const auto& [tier, name] : NamesOf(Tier())) {
      if (tier == Tier::kNone) continue;
      impl_->chunk_hits.Add({{"source", std::string(kvblend::Name(source))}, {"tier", std::string(name)}});
    }
  }
  for (const char* code : {"CANCELLED", "DEADLINE_EXCEEDED"}) {
    impl_->without_first_token.Add({{"code", code}});
  }
  impl_->http_refused.Add({{"status", "503"}});
  for (const char* result : {"computed", "present"}) impl_->put_chunks.Add({{"result", result}});
}

Metrics::~Metrics() = default;

void Metrics::SetEngine(const EngineInfo& info, std::function<EngineStats()> stats) {
  impl_->engine.Set(info, std::move(stats));
}

void Metrics::ResetEngine() { impl_->engine.Reset(); }

void Metrics::SetTenants(std::function<std::map<std::string, TenantCounts>()> counts) {
  impl_->tenants = std::move(counts);
}

void Metrics::SetReady(bool ready) { impl_->engine.SetReady(ready); }

void Metrics::CountCall(std::string_view service, std::string_view method, std::string_view code) {
  impl_->calls
      .Add({{"service", std::string(service)}, {"method", std::string(method)}, {"code", std::string(code)}})
      .Increment();
}

void Metrics::CountHttpCall(std::string_view method, std::string_view code) {
  impl_->http_calls.Add({{"method", std::string(method)}, {"code", std::string(code)}}).Increment();
}

void Metrics::ObserveQueueTime(double seconds) { impl_->queue.Observe(seconds); }

void Metrics::CountWithoutFirstToken(std::string_view code) {
  impl_->without_first_token.Add({{"code", std::string(code)}}).Increment();
}

void Metrics::CountHttpRefusal(int status) {
  impl_->http_refused.Add({{"status", absl::StrCat(status)}}).Increment();
}

void Metrics::CountHttpEviction() { impl_->http_evicted.Increment(); }

void Metrics::CountGrpcRefusal() { impl_->grpc_refused.Increment(); }

void Metrics::ObservePrompt(const v1::PromptReport& report) {
  impl_->first_token.Observe(report.time_to_first_token_seconds());
  impl_->lookup.Observe(report.lookup_seconds());
  impl_->load.Observe(report.load_seconds());
  impl_->stall.Observe(report.stall_seconds());
  impl_->select.Observe(report.select_seconds());
  impl_->prefill.Observe(report.prefill_seconds());
  impl_->others.Observe(report.others_seconds());
  impl_->prompt_tokens.Observe(report.prompt_tokens());
  impl_->kept_tokens.Increment(report.kept_tokens());
  impl_->exact_tokens.Increment(report.exact_tokens());
  impl_->reused_tokens.Increment(report.reused_tokens());
  if (report.reuse() != v1::REUSE_NOTHING) {
    impl_->prefix_queries.Increment(report.prompt_tokens());
    impl_->prefix_hits.Increment(report.kept_tokens() + report.shared_tokens());
  }
  impl_->recomputed_tokens.Increment(report.recomputed_tokens());
  impl_->computed_tokens.Increment(report.computed_tokens());
  // Without reusable, inexact tokens there was nothing to choose from, and no ratio.
  const bool has_ratio = report.reused_tokens() + report.recomputed_tokens() > 0;
  if (has_ratio) {
    impl_->ratio.Add({{"policy", Name(report.policy())}}, impl_->ratios).Observe(report.ratio());
  }
  const v1::LoadingReport& loading = report.loading();
  const double actual_seconds = report.load_seconds() + report.select_seconds() + report.prefill_seconds();
  if (loading.predicted() && actual_seconds > 0) {
    impl_->prediction.Observe(loading.predicted_seconds() / actual_seconds);
  }
  if (report.reuse() == v1::REUSE_NOTHING) return;  // nothing was looked up
  if (has_ratio) {
    impl_->chosen_ratio.Add({{"mode", Name(loading.mode())}}, impl_->ratios).Observe(loading.ratio());
  }
  impl_->chunk_lookups.Increment(report.chunks_size());
  for (const v1::ChunkReport& chunk : report.chunks()) {
    // A chunk without tokens is exact, and was found nowhere.
    if (chunk.source() == v1::CHUNK_SOURCE_MISS || chunk.tier() == v1::TIER_UNSPECIFIED) continue;
    if (chunk.source() == v1::CHUNK_SOURCE_BYPASSED) {
      impl_->bypassed.Add({{"tier", Name(chunk.tier())}}).Increment();
      continue;
    }
    impl_->chunk_hits.Add({{"source", Name(chunk.source())}, {"tier", Name(chunk.tier())}}).Increment();
  }
}

void Metrics::ObserveInterToken(double seconds) { impl_->inter_token.Observe(seconds); }

void Metrics::CountGeneratedTokens(int64_t tokens) {
  impl_->generated_tokens.Increment(static_cast<double>(tokens));
}

void Metrics::ObserveGenerate(const v1::GenerateFinished& finished) {
  const int32_t tokens = finished.usage().completion_tokens();
  const double seconds = finished.timings().total_seconds();
  impl_->latency.Observe(seconds);
  if (tokens > 1) {
    impl_->per_token.Observe((seconds - finished.timings().time_to_first_token_seconds()) / (tokens - 1));
  }
  impl_->generation_tokens.Observe(tokens);
  impl_->finished.Add({{"reason", Name(finished.reason())}}).Increment();
}

void Metrics::CountScoredToken() { impl_->scored_tokens.Increment(); }

void Metrics::ObservePutChunk(const v1::PutChunkProgress& progress) {
  impl_->put_chunks.Add({{"result", progress.already_present() ? "present" : "computed"}}).Increment();
  if (!progress.already_present()) impl_->chunk_compute.Observe(progress.compute_seconds());
}

namespace {

std::string Serialized(const std::vector<prometheus::MetricFamily>& families) {
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, families);
  return out.str();
}

}  // namespace

std::vector<prometheus::MetricFamily> Metrics::Impl::Collect() const {
  std::vector<prometheus::MetricFamily> families = registry.Collect();
  std::vector<prometheus::MetricFamily> of_engine = engine.Collect();
  families.insert(families.end(), std::make_move_iterator(of_engine.begin()),
                  std::make_move_iterator(of_engine.end()));
  if (tenants == nullptr) return families;
  std::vector<prometheus::MetricFamily> of_tenants = TenantFamilies(tenants());
  families.insert(families.end(), std::make_move_iterator(of_tenants.begin()),
                  std::make_move_iterator(of_tenants.end()));
  return families;
}

std::string Metrics::Expose() const { return Serialized(impl_->Collect()); }

std::string Metrics::ExposeUnderVllmNames(const std::string& served_name) const {
  return Serialized(
      UnderVllmNames(impl_->Collect(), served_name.empty() ? impl_->engine.model_name() : served_name));
}

}  // namespace kvblend::server
