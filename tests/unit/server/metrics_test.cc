#include "server/metrics/metrics.h"

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/store/disk/disk_tier_stats.h"
#include "engine/store/redis/redis_tier_stats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/convert/reports.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// "name{labels}" -> value of every sample; a small parser of its own.
std::map<std::string, double> Samples(const Metrics& metrics) {
  std::map<std::string, double> samples;
  std::istringstream lines(metrics.Expose());
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    samples[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  return samples;
}

PromptReport Report() {
  PromptReport report;
  report.policy = Policy::kQuery;
  report.ratio = 0.25;
  report.prompt_tokens = 100;
  report.kept_tokens = 10;
  report.exact_tokens = 20;
  report.reused_tokens = 30;
  report.recomputed_tokens = 10;
  report.computed_tokens = 30;
  report.chunks = {{0, ChunkSource::kExact, Tier::kHostMemory, 30, 0, ""},
                   {1, ChunkSource::kBlended, Tier::kHostMemory, 20, 5, ""},
                   {2, ChunkSource::kBlended, Tier::kHostMemory, 20, 5, ""},
                   {3, ChunkSource::kMiss, Tier::kNone, 10, 10, ""}};
  report.others_seconds = 3;
  report.time_to_first_token_seconds = 0.25;
  return report;
}

TEST(MetricsTest, APromptMovesTokensChunksAndTimes) {
  Metrics metrics;
  metrics.ObservePrompt(ToProto(Report()));
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_prompt_tokens_total{source=\"kept\"}"], 10);
  EXPECT_EQ(samples["kvblend_prompt_tokens_total{source=\"exact\"}"], 20);
  EXPECT_EQ(samples["kvblend_prompt_tokens_total{source=\"reused\"}"], 30);
  EXPECT_EQ(samples["kvblend_prompt_tokens_total{source=\"recomputed\"}"], 10);
  EXPECT_EQ(samples["kvblend_prompt_tokens_total{source=\"computed\"}"], 30);
  EXPECT_EQ(samples["kvblend_chunk_lookups_total"], 4);
  EXPECT_EQ(samples["kvblend_chunk_hits_total{source=\"exact\",tier=\"host_memory\"}"], 1);
  EXPECT_EQ(samples["kvblend_chunk_hits_total{source=\"blended\",tier=\"host_memory\"}"], 2);
  EXPECT_EQ(samples["kvblend_time_to_first_token_seconds_count"], 1);
  EXPECT_EQ(samples["kvblend_time_to_first_token_seconds_sum"], 0.25);
  EXPECT_EQ(samples["kvblend_time_to_first_token_seconds_bucket{le=\"0.1\"}"], 0);
  EXPECT_EQ(samples["kvblend_time_to_first_token_seconds_bucket{le=\"0.25\"}"], 1);
  EXPECT_EQ(samples["kvblend_request_others_time_seconds_sum"], 3);
  EXPECT_EQ(samples["kvblend_request_queue_time_seconds_count"], 0) << "it was told when the queue was left";
  EXPECT_EQ(samples["kvblend_request_prompt_tokens_sum"], 100);
  EXPECT_EQ(samples["kvblend_recompute_ratio_sum{policy=\"query\"}"], 0.25);

  PromptReport nothing = Report();
  nothing.reuse = Reuse::kNothing;
  nothing.reused_tokens = nothing.recomputed_tokens = 0;
  metrics.ObservePrompt(ToProto(nothing));
  samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_chunk_lookups_total"], 4);  // full prefill looks nothing up
  EXPECT_EQ(samples["kvblend_recompute_ratio_count{policy=\"query\"}"], 1);
  EXPECT_EQ(samples["kvblend_time_to_first_token_seconds_count"], 2);
}

TEST(MetricsTest, TheLoadingControllersChoicesAndErrorsAreCounted) {
  Metrics metrics;
  PromptReport report = Report();
  report.loading = {.mode = RatioMode::kAuto, .ratio = 0.3, .bypassed_chunks = 1, .predicted = true};
  report.loading.predicted_seconds = 0.6;
  report.load_seconds = 0.1;
  report.select_seconds = 0.1;
  report.prefill_seconds = 0.2;
  report.chunks.push_back({4, ChunkSource::kBypassed, Tier::kDisk, 10, 10, ""});
  metrics.ObservePrompt(ToProto(report));
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_chosen_ratio_sum{mode=\"auto\"}"], 0.3);
  EXPECT_DOUBLE_EQ(samples["kvblend_prefill_prediction_ratio_sum"], 1.5);
  EXPECT_EQ(samples["kvblend_bypassed_chunks_total{tier=\"disk\"}"], 1);
  EXPECT_EQ(samples["kvblend_chunk_lookups_total"], 5);
  EXPECT_EQ(samples.count("kvblend_chunk_hits_total{source=\"bypassed\",tier=\"disk\"}"), 0u);
  report.loading.predicted = false;
  report.loading.mode = RatioMode::kFixed;
  metrics.ObservePrompt(ToProto(report));
  samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_prefill_prediction_ratio_count"], 1);
  EXPECT_EQ(samples["kvblend_chosen_ratio_count{mode=\"fixed\"}"], 1);
}

TEST(MetricsTest, WaitingAndGivingUpAreCountedWithoutAFirstToken) {
  Metrics metrics;
  auto samples = Samples(metrics);
  for (const std::string name :
       {"kvblend_requests_without_first_token_total{code=\"CANCELLED\"}",
        "kvblend_requests_without_first_token_total{code=\"DEADLINE_EXCEEDED\"}",
        "kvblend_http_refused_total{status=\"503\"}", "kvblend_http_evicted_connections_total",
        "kvblend_grpc_refused_connections_total"}) {
    EXPECT_EQ(samples.count(name), 1u) << name << " has a zero to start from";
    EXPECT_EQ(samples[name], 0) << name;
  }
  metrics.ObserveQueueTime(1.1);
  metrics.ObserveQueueTime(300);
  metrics.CountWithoutFirstToken("CANCELLED");
  metrics.CountHttpRefusal(431);
  metrics.CountHttpEviction();
  metrics.CountGrpcRefusal();
  samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_request_queue_time_seconds_sum"], 301.1);
  // An alert at two seconds is not to guess from which side of them a wait was, nor one at minutes.
  EXPECT_EQ(samples["kvblend_request_queue_time_seconds_bucket{le=\"1\"}"], 0);
  EXPECT_EQ(samples["kvblend_request_queue_time_seconds_bucket{le=\"2\"}"], 1);
  EXPECT_EQ(samples["kvblend_request_queue_time_seconds_bucket{le=\"240\"}"], 1);
  EXPECT_EQ(samples["kvblend_request_queue_time_seconds_bucket{le=\"480\"}"], 2);
  EXPECT_EQ(samples["kvblend_requests_without_first_token_total{code=\"CANCELLED\"}"], 1);
  EXPECT_EQ(samples["kvblend_http_refused_total{status=\"431\"}"], 1);
  EXPECT_EQ(samples["kvblend_http_evicted_connections_total"], 1);
  EXPECT_EQ(samples["kvblend_grpc_refused_connections_total"], 1);
}

TEST(MetricsTest, MeasuredCostsAreGauges) {
  Metrics metrics;
  EngineStats stats;
  stats.loading = {.read_bytes_per_second = {{Tier::kDisk, 1e9}},
                   .compute_seconds_per_token = 0.25,
                   .place_seconds_per_token = 0.5};
  metrics.SetEngine({}, [&] { return stats; });
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_read_bandwidth_bytes_per_second{tier=\"disk\"}"], 1e9);
  EXPECT_EQ(samples["kvblend_compute_seconds_per_token"], 0.25);
  EXPECT_EQ(samples["kvblend_place_seconds_per_token"], 0.5);
  metrics.ResetEngine();
}

TEST(MetricsTest, TheCorrectionTellsWhatItLeavesOfEachLayer) {
  Metrics metrics;
  EngineStats stats;
  stats.correction = {.version = "abcd", .learning = LearningState::kOn, .learned = true, .tokens = 640};
  stats.correction.fits = 3;
  stats.correction.fits_applied = 1;
  stats.correction.shared = true;
  stats.correction.replicas_found = 5;
  stats.correction.replicas_merged = 4;
  stats.correction.moments_published = 7;
  stats.correction.moments_refused = 8;
  stats.correction.sharing_failures = 9;
  stats.correction.deviation_before = {0, 0.5};
  stats.correction.deviation_after = {0, 0.125};
  metrics.SetEngine({}, [&] { return stats; });
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_correction_info{version=\"abcd\",origin=\"learned\"}"], 1);
  EXPECT_EQ(samples["kvblend_correction_learning"], 1);
  EXPECT_EQ(samples["kvblend_correction_tokens"], 640);
  EXPECT_EQ(samples["kvblend_correction_fits_total"], 3);
  EXPECT_EQ(samples["kvblend_correction_fits_applied_total"], 1);
  EXPECT_EQ(samples["kvblend_correction_shared"], 1);
  EXPECT_EQ(samples["kvblend_correction_replicas_found"], 5);
  EXPECT_EQ(samples["kvblend_correction_replicas_merged"], 4);
  EXPECT_EQ(samples["kvblend_correction_moments_published_total"], 7);
  EXPECT_EQ(samples["kvblend_correction_moments_refused_total"], 8);
  EXPECT_EQ(samples["kvblend_correction_sharing_failures_total"], 9);
  EXPECT_EQ(samples["kvblend_correction_deviation_before{layer=\"1\"}"], 0.5);
  EXPECT_EQ(samples["kvblend_correction_deviation_after{layer=\"1\"}"], 0.125);
  stats.correction = {};
  samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_correction_info{version=\"\",origin=\"none\"}"], 0);
  EXPECT_EQ(samples["kvblend_correction_learning"], 0);
  metrics.ResetEngine();
}

TEST(MetricsTest, AnAnswerMovesLatencyTokensAndReason) {
  Metrics metrics;
  GenerateResult result;
  result.finish_reason = FinishReason::kMaxTokens;
  result.completion_tokens = 11;
  result.time_to_first_token_seconds = 1;
  result.total_seconds = 3;
  metrics.ObserveGenerate(ToProto(result));
  result.completion_tokens = 1;  // no time per token without a second token
  metrics.ObserveGenerate(ToProto(result));
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_e2e_request_latency_seconds_sum"], 6);
  EXPECT_EQ(samples["kvblend_time_per_output_token_seconds_count"], 1);
  EXPECT_DOUBLE_EQ(samples["kvblend_time_per_output_token_seconds_sum"], 0.2);
  EXPECT_EQ(samples["kvblend_request_generation_tokens_sum"], 12);
  EXPECT_EQ(samples["kvblend_generation_tokens_total"], 0);  // which are counted as they come
  metrics.CountGeneratedTokens(5);
  EXPECT_EQ(Samples(metrics)["kvblend_generation_tokens_total"], 5);
  EXPECT_EQ(samples["kvblend_requests_finished_total{reason=\"max_tokens\"}"], 2);
  EXPECT_EQ(samples.count("kvblend_requests_finished_total{reason=\"stop_string\"}"),
            1u);  // zero from the start
}

TEST(MetricsTest, CallsScoresAndPuts) {
  Metrics metrics;
  metrics.CountCall("Inference", "Generate", "OK");
  metrics.CountCall("Inference", "Generate", "INVALID_ARGUMENT");
  metrics.CountCall("Inference", "Generate", "OK");
  metrics.CountHttpCall("ChatCompletions", "OK");
  metrics.CountScoredToken();
  PutChunkProgress progress;
  progress.compute_seconds = 0.5;
  metrics.ObservePutChunk(ToProto(progress));
  progress.already_present = true;
  metrics.ObservePutChunk(ToProto(progress));
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_grpc_calls_total{code=\"OK\",method=\"Generate\",service=\"Inference\"}"], 2);
  EXPECT_EQ(
      samples
          ["kvblend_grpc_calls_total{code=\"INVALID_ARGUMENT\",method=\"Generate\",service=\"Inference\"}"],
      1);
  EXPECT_EQ(samples["kvblend_http_calls_total{code=\"OK\",method=\"ChatCompletions\"}"], 1);
  EXPECT_EQ(samples["kvblend_scored_tokens_total"], 1);
  EXPECT_EQ(samples["kvblend_put_chunks_total{result=\"computed\"}"], 1);
  EXPECT_EQ(samples["kvblend_put_chunks_total{result=\"present\"}"], 1);
  EXPECT_EQ(samples["kvblend_chunk_compute_time_seconds_count"], 1);
  EXPECT_EQ(samples["kvblend_chunk_compute_time_seconds_sum"], 0.5);
}

TEST(MetricsTest, TheEnginesNumbersArePulledWhileThereIsAnEngine) {
  Metrics metrics;
  EXPECT_THAT(metrics.Expose(), Not(HasSubstr("kvblend_num_requests_running")));
  auto samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_ready"], 0);
  EXPECT_GT(samples["process_start_time_seconds"], 1.5e9);
  EXPECT_GT(samples["process_resident_memory_bytes"], 1e6);
  EXPECT_EQ(samples.count("process_cpu_seconds_total"), 1u);

  EngineInfo info;
  info.version = "1.2.3";
  info.model_name = "a \"model\"";
  info.device = "cuda:1";
  info.device_name = "GPU";
  EngineStats stats;
  metrics.SetEngine(info, [&stats] { return stats; });
  metrics.SetReady(true);
  stats.requests_running = 1;
  stats.requests_waiting = 2;
  stats.pages_used = 3;
  stats.pages_total = 4;
  stats.page_bytes = 1 << 20;
  stats.background_unfinished = 5;
  stats.background_chunks_stored = 6;
  stats.background_chunks_failed = 7;
  stats.sequences_decoding = 13;
  stats.decode_steps = 14;
  stats.decoded_tokens = 15;
  stats.drafted_tokens = 16;
  stats.accepted_draft_tokens = 17;
  stats.store.entries = 8;
  stats.store.bytes = 9;
  stats.store.byte_budget = 10;
  stats.store.evictions = 11;
  stats.store.hits = 12;
  samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_ready"], 1);
  EXPECT_EQ(samples["kvblend_num_requests_running"], 1);
  EXPECT_EQ(samples["kvblend_num_requests_waiting"], 2);
  EXPECT_EQ(samples["kvblend_kv_pages_used"], 3);
  EXPECT_EQ(samples["kvblend_kv_pages_capacity"], 4);
  EXPECT_EQ(samples["kvblend_kv_page_bytes"], 1 << 20);
  EXPECT_EQ(samples["kvblend_kv_pages_used_ratio"], 0.75);
  EXPECT_EQ(samples["kvblend_device_info{device=\"cuda:1\",name=\"GPU\"}"], 1);
  EXPECT_EQ(samples.count("kvblend_device_memory_used_bytes"), 0u);
  stats.device_memory = {.used_bytes = 13, .total_bytes = 14};
  samples = Samples(metrics);
  EXPECT_EQ(samples["kvblend_device_memory_used_bytes"], 13);
  EXPECT_EQ(samples["kvblend_device_memory_capacity_bytes"], 14);
  EXPECT_EQ(samples["kvblend_num_background_unfinished"], 5);
  EXPECT_EQ(samples["kvblend_background_chunks_stored_total"], 6);
  EXPECT_EQ(samples["kvblend_background_chunks_failed_total"], 7);
  EXPECT_EQ(samples["kvblend_num_sequences_decoding"], 13);
  EXPECT_EQ(samples["kvblend_decode_steps_total"], 14);
  EXPECT_EQ(samples["kvblend_decoded_tokens_total"], 15);
  EXPECT_EQ(samples["kvblend_drafted_tokens_total"], 16);
  EXPECT_EQ(samples["kvblend_accepted_draft_tokens_total"], 17);
  EXPECT_EQ(samples["kvblend_store_entries"], 8);
  EXPECT_EQ(samples["kvblend_store_bytes"], 9);
  EXPECT_EQ(samples["kvblend_store_budget_bytes"], 10);
  EXPECT_EQ(samples["kvblend_store_evictions_total"], 11);
  EXPECT_EQ(samples["kvblend_store_hits_total"], 12);
  EXPECT_THAT(metrics.Expose(), HasSubstr("model=\"a \\\"model\\\"\""));
  metrics.ResetEngine();
  EXPECT_THAT(metrics.Expose(), Not(HasSubstr("kvblend_num_requests_running")));
}

// What there is of vLLM's, with its boundaries (of its release 0.9); the counts are those of ours.
TEST(MetricsTest, VllmsNamesTellTheSame) {
  Metrics metrics;
  EngineInfo info;
  info.model_name = "m";
  metrics.SetEngine(info, [] {
    EngineStats stats;
    stats.requests_waiting = 3;
    stats.drafted_tokens = 8;
    return stats;
  });
  metrics.ObservePrompt(ToProto(Report()));
  metrics.ObserveInterToken(0.02);
  v1::GenerateFinished finished;
  for (const v1::FinishReason reason :
       {v1::FINISH_REASON_END_OF_TEXT, v1::FINISH_REASON_STOP_STRING, v1::FINISH_REASON_MAX_TOKENS}) {
    finished.set_reason(reason);
    metrics.ObserveGenerate(finished);
  }
  // As /v1/models has it, which is how dashboards for several servers tell models apart.
  EXPECT_THAT(metrics.ExposeUnderVllmNames("served"),
              HasSubstr("vllm:prompt_tokens_total{model_name=\"served\"} 100"));
  const std::string page = metrics.ExposeUnderVllmNames();
  for (const std::string line :
       {"vllm:num_requests_waiting{model_name=\"m\"} 3", "vllm:prompt_tokens_total{model_name=\"m\"} 100",
        "vllm:spec_decode_num_draft_tokens_total{model_name=\"m\"} 8",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 2",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"length\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"m\"} 1",
        "vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"0.025\"} 1"}) {
    EXPECT_THAT(page, HasSubstr(line + "\n"));
  }
  EXPECT_THAT(page, Not(HasSubstr("kvblend_")));
  for (const auto& [name, bounds] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"time_to_first_token_seconds", {"0.001", "0.06", "7.5", "640", "2560"}},
           {"e2e_request_latency_seconds", {"0.3", "0.8", "60", "960", "1920", "7680"}},
           {"request_queue_time_seconds",
            {"0.3", "0.5", "0.8", "1",  "1.5", "2",   "2.5", "5",   "10",   "15",  "20",
             "30",  "40",  "50",  "60", "120", "240", "480", "960", "1920", "7680"}},
           {"inter_token_latency_seconds", {"0.01", "0.075", "0.15", "0.75", "7.5", "80"}}}) {
    for (const std::string& bound : bounds) {
      EXPECT_THAT(page, HasSubstr("vllm:" + name + "_bucket{model_name=\"m\",le=\"" + bound + "\"}"));
    }
  }
}

TEST(MetricsTest, FamiliesAppearOnceWithHelpAndTypeAndSoundNames) {
  Metrics metrics;
  metrics.SetEngine({}, [] {
    EngineStats stats;
    stats.tiers = {
        {.tier = Tier::kDisk, .values = store::FiguresOf<store::DiskTierStats>({}, store::kDiskFigures)},
        {.tier = Tier::kRedis, .values = store::FiguresOf<store::RedisTierStats>({}, store::kRedisFigures)}};
    return stats;
  });
  metrics.ObservePrompt(ToProto(Report()));
  metrics.CountCall("Inference", "Generate", "OK");
  std::istringstream lines(metrics.Expose());
  std::set<std::string> helped, typed;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name, type;
    words >> hash >> kind >> name >> type;
    if (hash != "#") continue;
    if (kind == "HELP") {
      EXPECT_TRUE(helped.insert(name).second) << name;
    }
    if (kind != "TYPE") continue;
    EXPECT_TRUE(typed.insert(name).second) << name;
    const bool ends_in_total = name.size() > 6 && name.compare(name.size() - 6, 6, "_total") == 0;
    EXPECT_EQ(type == "counter", ends_in_total) << line;
  }
  EXPECT_EQ(helped, typed);
  for (const char* name :
       {"kvblend_time_to_first_token_seconds", "kvblend_time_per_output_token_seconds",
        "kvblend_e2e_request_latency_seconds", "kvblend_num_requests_running", "kvblend_num_requests_waiting",
        "kvblend_build_info", "kvblend_disk_entries", "kvblend_redis_hits_total"}) {
    EXPECT_EQ(typed.count(name), 1u) << name;
  }
}

TEST(MetricsTest, ScrapesRunBesideUpdates) {
  Metrics metrics;
  metrics.SetEngine({}, [] { return EngineStats(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&metrics, i] {
      for (int k = 0; k < 50; ++k) {
        metrics.ObservePrompt(ToProto(Report()));
        metrics.CountCall("Inference", "Generate", i == 0 ? "OK" : "CANCELLED");
        metrics.SetReady(k % 2 == 0);
        if (i == 0) metrics.Expose();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Samples(metrics)["kvblend_time_to_first_token_seconds_count"], 150);
}

TEST(MetricsTest, TenantsAreToldApart) {
  Metrics metrics;
  EXPECT_THAT(metrics.Expose(), Not(HasSubstr("kvblend_tenant_")));
  metrics.SetTenants([] {
    return std::map<std::string, TenantCounts>{
        {"a \"b\"", {.requests = 7, .computed_tokens = 40, .refused = {{"requests_per_minute", 2}}}},
        {"c", {.requests = 0, .computed_tokens = 0, .refused = {{"requests_per_minute", 0}}}}};
  });
  auto samples = Samples(metrics);
  EXPECT_EQ(samples[R"(kvblend_tenant_requests_total{tenant="a \"b\""})"], 7);
  EXPECT_EQ(samples[R"(kvblend_tenant_computed_tokens_total{tenant="a \"b\""})"], 40);
  EXPECT_EQ(samples[R"(kvblend_tenant_refused_requests_total{tenant="a \"b\"",limit="requests_per_minute"})"],
            2);
  EXPECT_TRUE(samples.contains(R"(kvblend_tenant_requests_total{tenant="c"})"));
}

}  // namespace
}  // namespace kvblend::server
