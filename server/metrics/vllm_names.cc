#include "server/metrics/vllm_names.h"

#include <array>
#include <string_view>
#include <utility>

namespace kvblend::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;

struct NamePair {
  std::string_view ours;
  std::string_view theirs;
};

constexpr std::array<NamePair, 18> kSameMeaning = {{
    {"kvblend_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"kvblend_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"kvblend_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"},
    {"kvblend_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    {"kvblend_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
    {"kvblend_request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"kvblend_request_generation_tokens", "vllm:request_generation_tokens"},
    {"kvblend_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"kvblend_generation_tokens_total", "vllm:generation_tokens_total"},
    {"kvblend_requests_finished_total", "vllm:request_success_total"},
    {"kvblend_num_requests_running", "vllm:num_requests_running"},
    {"kvblend_num_requests_waiting", "vllm:num_requests_waiting"},
    {"kvblend_kv_pages_used_ratio", "vllm:kv_cache_usage_perc"},
    {"kvblend_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"},
    {"kvblend_prefix_cache_hits_total", "vllm:prefix_cache_hits_total"},
    {"kvblend_num_preemptions_total", "vllm:num_preemptions_total"},
    {"kvblend_drafted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"kvblend_accepted_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
}};

constexpr std::string_view kByReason = "vllm:request_success_total";

/// vLLM has two reasons: the answer ended by itself, or had no more room.
std::string FinishedReason(std::string_view ours) {
  return ours == "end_of_text" || ours == "stop_string" ? "stop" : "length";
}

/// Adds the values of our counters that vLLM has under one label.
void AddUp(const MetricFamily& ours, std::string_view theirs, const std::string& model_name,
           std::vector<ClientMetric>& metrics) {
  for (const ClientMetric& metric : ours.metric) {
    std::vector<ClientMetric::Label> labels = {{"model_name", model_name}};
    if (theirs == kByReason)
      labels.push_back({"finished_reason", FinishedReason(metric.label.front().value)});
    auto same = metrics.begin();
    while (same != metrics.end() && !(same->label == labels)) ++same;
    if (same == metrics.end()) {
      same = metrics.insert(metrics.end(), ClientMetric());
      same->label = std::move(labels);
    }
    same->counter.value += metric.counter.value;
  }
}

}  // namespace

std::vector<MetricFamily> UnderVllmNames(const std::vector<MetricFamily>& ours,
                                         const std::string& model_name) {
  std::vector<MetricFamily> families;
  for (const NamePair& pair : kSameMeaning) {
    for (const MetricFamily& family : ours) {
      if (family.name != pair.ours) continue;
      MetricFamily& renamed = families.emplace_back();
      renamed.name = std::string(pair.theirs);
      renamed.help = family.help;
      renamed.type = family.type;
      if (family.type == prometheus::MetricType::Counter) {
        AddUp(family, pair.theirs, model_name, renamed.metric);
        continue;
      }
      renamed.metric = family.metric;
      for (ClientMetric& metric : renamed.metric) metric.label.push_back({"model_name", model_name});
    }
  }
  return families;
}

}  // namespace kvblend::server
