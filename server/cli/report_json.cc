// The ToJson half of request_json.h: what the engine says, for machines.
#include <string>

#include "engine/api/engine.h"
#include "server/cli/request_json.h"

namespace kvblend::server::cli {
namespace {

OrderedJson ToJson(const TokenLogprob& token) {
  return {{"token_id", token.token_id}, {"text", token.text}, {"logprob", token.logprob}};
}

OrderedJson ToJson(const LoadingReport& loading) {
  OrderedJson reads = OrderedJson::array();
  for (const TierRead& read : loading.reads) {
    reads.push_back(
        {{"tier", Name(read.tier)}, {"bytes", read.bytes}, {"bytes_per_second", read.bytes_per_second}});
  }
  return {{"mode", Name(loading.mode)},
          {"ratio_min", loading.ratio_min},
          {"ratio_max", loading.ratio_max},
          {"ratio", loading.ratio},
          {"bypassed_chunks", loading.bypassed_chunks},
          {"predicted", loading.predicted},
          {"predicted_seconds", loading.predicted_seconds},
          {"predicted_load_seconds", loading.predicted_load_seconds},
          {"predicted_compute_seconds", loading.predicted_compute_seconds},
          {"compute_seconds_per_token", loading.compute_seconds_per_token},
          {"reads", std::move(reads)}};
}

}  // namespace

OrderedJson ToJson(const PromptReport& report) {
  OrderedJson chunks = OrderedJson::array();
  for (const ChunkReport& chunk : report.chunks) {
    chunks.push_back({{"index", chunk.index},
                      {"source", Name(chunk.source)},
                      {"tier", Name(chunk.tier)},
                      {"num_tokens", chunk.num_tokens},
                      {"recomputed_tokens", chunk.recomputed_tokens},
                      {"key", chunk.key}});
  }
  return {{"policy", Name(report.policy)},
          {"ratio", report.ratio},
          {"reuse", Name(report.reuse)},
          {"anchoring", Name(report.anchoring)},
          {"prompt_tokens", report.prompt_tokens},
          {"exact_tokens", report.exact_tokens},
          {"reused_tokens", report.reused_tokens},
          {"recomputed_tokens", report.recomputed_tokens},
          {"computed_tokens", report.computed_tokens},
          {"queue_seconds", report.queue_seconds},
          {"lookup_seconds", report.lookup_seconds},
          {"load_seconds", report.load_seconds},
          {"stall_seconds", report.stall_seconds},
          {"select_seconds", report.select_seconds},
          {"prefill_seconds", report.prefill_seconds},
          {"time_to_first_token_seconds", report.time_to_first_token_seconds},
          {"loading", ToJson(report.loading)},
          {"chunks", std::move(chunks)}};
}

OrderedJson ToJson(const TextDelta& delta) {
  OrderedJson json = {{"text", delta.text}, {"token_ids", delta.token_ids}};
  if (!delta.logprobs.empty()) {
    json["logprobs"] = OrderedJson::array();
    for (const TokenLogprob& token : delta.logprobs) json["logprobs"].push_back(ToJson(token));
  }
  if (!delta.top_logprobs.empty()) {
    json["top_logprobs"] = OrderedJson::array();
    for (const auto& position : delta.top_logprobs) {
      OrderedJson tokens = OrderedJson::array();
      for (const TokenLogprob& token : position) tokens.push_back(ToJson(token));
      json["top_logprobs"].push_back(std::move(tokens));
    }
  }
  return json;
}

OrderedJson ToJson(const GenerateResult& result) {
  return {{"finish_reason", Name(result.finish_reason)},
          {"stop_string", result.stop_string},
          {"prompt_tokens", result.prompt_tokens},
          {"completion_tokens", result.completion_tokens},
          {"seed", result.seed},
          {"time_to_first_token_seconds", result.time_to_first_token_seconds},
          {"total_seconds", result.total_seconds}};
}

OrderedJson ToJson(const ScoredToken& token) {
  return {{"token_id", token.token_id},
          {"text", token.text},
          {"logprob", token.logprob},
          {"top_token_id", token.top_token_id},
          {"top_logprob", token.top_logprob}};
}

OrderedJson ToJson(const ChunkInfo& chunk) {
  return {{"key", chunk.key},
          {"tier", Name(chunk.tier)},
          {"num_tokens", chunk.num_tokens},
          {"size_bytes", chunk.size_bytes},
          {"pinned", chunk.pinned},
          {"label", chunk.label},
          {"anchor_hash", chunk.anchor_hash},
          {"hits", chunk.hits},
          {"created_unix_seconds", chunk.created_unix_seconds},
          {"last_used_unix_seconds", chunk.last_used_unix_seconds},
          {"compute_seconds", chunk.compute_seconds}};
}

OrderedJson ToJson(const PutChunkProgress& progress) {
  return {{"index", progress.index},           {"done", progress.done},
          {"total", progress.total},           {"key", progress.key},
          {"num_tokens", progress.num_tokens}, {"already_present", progress.already_present},
          {"durable", progress.durable},       {"compute_seconds", progress.compute_seconds}};
}

OrderedJson ToJson(const Info& info) {
  const EngineInfo& engine = info.engine;
  OrderedJson json = {
      {"version", engine.version},
      {"model",
       {{"name", engine.model_name},
        {"architecture", engine.model_architecture},
        {"fingerprint", engine.model_fingerprint},
        {"num_layers", engine.num_layers},
        {"num_heads", engine.num_heads},
        {"num_kv_heads", engine.num_kv_heads},
        {"head_dim", engine.head_dim},
        {"hidden_dim", engine.hidden_dim},
        {"vocab_size", engine.vocab_size}}},
      {"device", {{"device", engine.device}, {"name", engine.device_name}, {"reason", engine.device_reason}}},
      {"backend", engine.backend},
      {"kv_dtype", engine.kv_dtype},
      {"chunk_format", engine.chunk_format},
      {"chunk_bytes_per_token", engine.chunk_bytes_per_token},
      {"page_size", engine.page_size},
      {"max_context_tokens", engine.max_context_tokens},
      {"max_batch_size", engine.max_batch_size},
      {"max_batch_tokens", engine.max_batch_tokens},
      {"self_check_max_error", engine.self_check_max_error},
      {"store",
       {{"entries", info.store.entries},
        {"used_bytes", info.store.used_bytes},
        {"budget_bytes", info.store.budget_bytes},
        {"pinned_entries", info.store.pinned_entries},
        {"lookups", info.store.lookups},
        {"hits", info.store.hits},
        {"evictions", info.store.evictions}}},
      {"pages_used", info.pages_used},
      {"pages_total", info.pages_total},
      {"requests_waiting", info.requests_waiting},
      {"requests_running", info.requests_running},
      {"sequences_decoding", info.sequences_decoding}};
  if (info.device_memory.has_value()) {
    json["device"]["memory_used_bytes"] = info.device_memory->used_bytes;
    json["device"]["memory_total_bytes"] = info.device_memory->total_bytes;
  }
  if (info.disk.has_value()) {
    json["disk"] = {{"entries", info.disk->entries},
                    {"used_bytes", info.disk->used_bytes},
                    {"quota_bytes", info.disk->quota_bytes},
                    {"pinned_entries", info.disk->pinned_entries},
                    {"hits", info.disk->hits},
                    {"evictions", info.disk->evictions},
                    {"quarantined", info.disk->quarantined},
                    {"failing", info.disk->failing}};
  }
  if (info.redis.has_value()) {
    json["redis"] = {{"nodes", info.redis->nodes},
                     {"nodes_working", info.redis->nodes_working},
                     {"hits", info.redis->hits},
                     {"misses", info.redis->misses},
                     {"lookup_errors", info.redis->lookup_errors},
                     {"puts", info.redis->puts},
                     {"put_failures", info.redis->put_failures},
                     {"damaged", info.redis->damaged}};
  }
  return json;
}

}  // namespace kvblend::server::cli
