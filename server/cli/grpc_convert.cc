#include "server/cli/grpc_convert.h"

#include "server/convert/enums.h"

namespace kvblend::server::cli {

ChunkInfo ToChunkInfo(const v1::ChunkInfo& message) {
  return {.key = message.key(),
          .tier = server::FromProto(message.tier()).value_or(Tier::kNone),
          .num_tokens = message.num_tokens(),
          .size_bytes = message.size_bytes(),
          .pinned = message.pinned(),
          .label = message.label(),
          .anchor_hash = message.anchor_hash(),
          .hits = message.hits(),
          .created_unix_seconds = message.created_unix_seconds(),
          .last_used_unix_seconds = message.last_used_unix_seconds(),
          .compute_seconds = message.compute_seconds()};
}

PrefetchedChunk ToPrefetchedChunk(const v1::PrefetchedChunk& message) {
  return {.key = message.key(),
          .tier = server::FromProto(message.tier()).value_or(Tier::kNone),
          .num_tokens = message.num_tokens()};
}

Info ToInfo(const v1::GetInfoResponse& message) {
  Info info;
  info.engine.version = message.version();
  info.engine.model_name = message.model().name();
  info.engine.model_architecture = message.model().architecture();
  info.engine.model_fingerprint = message.model().fingerprint();
  info.engine.device = message.device().device();
  info.engine.device_name = message.device().name();
  info.engine.device_reason = message.device().reason();
  if (message.device().memory_total_bytes() > 0) {
    info.device_memory = {.used_bytes = message.device().memory_used_bytes(),
                          .total_bytes = message.device().memory_total_bytes()};
  }
  info.engine.backend = message.backend();
  info.engine.kv_dtype = message.kv_format().dtype();
  info.engine.chunk_format = message.kv_format().chunk_format();
  info.engine.chunk_bytes_per_token = message.kv_format().chunk_bytes_per_token();
  info.engine.num_layers = message.model().num_layers();
  info.engine.num_heads = message.model().num_heads();
  info.engine.num_kv_heads = message.model().num_kv_heads();
  info.engine.head_dim = message.model().head_dim();
  info.engine.hidden_dim = message.model().hidden_dim();
  info.engine.vocab_size = message.model().vocab_size();
  info.engine.max_context_tokens = message.limits().max_context_tokens();
  info.engine.page_size = message.kv_format().page_size();
  info.engine.max_batch_size = message.limits().max_batch_size();
  info.engine.max_batch_tokens = message.limits().max_batch_tokens();
  info.engine.self_check_max_error = message.self_check_max_error();
  info.store = {.entries = message.store().entries(),
                .used_bytes = message.store().used_bytes(),
                .budget_bytes = message.store().budget_bytes(),
                .pinned_entries = message.store().pinned_entries(),
                .lookups = message.store().lookups(),
                .hits = message.store().hits(),
                .evictions = message.store().evictions()};
  if (message.has_disk()) {
    info.disk = {.entries = message.disk().entries(),
                 .used_bytes = message.disk().used_bytes(),
                 .quota_bytes = message.disk().quota_bytes(),
                 .pinned_entries = message.disk().pinned_entries(),
                 .hits = message.disk().hits(),
                 .evictions = message.disk().evictions(),
                 .quarantined = message.disk().quarantined(),
                 .failing = message.disk().failing()};
  }
  if (message.has_redis()) {
    info.redis = {.nodes = message.redis().nodes(),
                  .nodes_working = message.redis().nodes_working(),
                  .hits = message.redis().hits(),
                  .misses = message.redis().misses(),
                  .lookup_errors = message.redis().lookup_errors(),
                  .puts = message.redis().puts(),
                  .put_failures = message.redis().put_failures(),
                  .damaged = message.redis().damaged()};
  }
  info.pages_used = message.load().pages_used();
  info.pages_total = message.load().pages_total();
  info.requests_waiting = message.load().requests_waiting();
  info.requests_running = message.load().requests_running();
  info.sequences_decoding = message.load().sequences_decoding();
  return info;
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace kvblend::server::cli
