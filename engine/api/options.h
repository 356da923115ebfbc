// The settings of an engine: plain data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/api/request.h"

namespace kvblend {

/// How much of memory, and of the disk, the chunks of one namespace may fill: a share of the tier's bytes
/// and, for namespaces in `bytes`, no more than so many bytes. A namespace that has filled its part gives up
/// its own entries for new ones, never those of others.
struct NamespaceQuotas {
  double default_share = 1.0;                // of each namespace that is not in `named`; (0, 1]
  std::map<std::string, double> named = {};  // namespace -> its share, (0, 1]
  std::map<std::string, int64_t> bytes =
      {};  // namespace -> bytes, above 0; see ChunkCatalog::LimitNamespaces

  bool limited() const { return default_share < 1 || !named.empty() || !bytes.empty(); }
  int64_t BytesOf(std::string_view tenant_namespace, int64_t tier_bytes) const;
  /// The limit in words: "namespace 'acme' may fill 1000 bytes (store_bytes of its tenant)".
  std::string Describe(std::string_view tenant_namespace, int64_t tier_bytes) const;
  /// kInvalidArgument naming the namespace, its share and what is allowed.
  absl::Status Check() const;
};

/// How to reach the Redis that stored chunks are shared through.
struct RedisOptions {
  std::string nodes;     // "host:port[,host:port...]", of one cluster or one server; empty: none
  std::string user;      // name in Redis's ACL; empty: the default user
  std::string password;  // empty: none
  bool tls = false;
  std::string tls_ca;           // PEM; empty: the system's authorities
  std::string tls_certificate;  // PEM, shown to Redis; given together with its key
  std::string tls_key;
  std::string tls_server_name;   // the name in the nodes' certificates; empty: each node's own host
  double ttl_seconds = 86400;    // how long a chunk stays after its last hit, about; 0: for ever
  double budget_seconds = 0.05;  // the longest delay that a slow or dead Redis may cause a prompt
  int64_t max_value_bytes = int64_t{64}
                            << 20;   // chunks with a larger section (K or V of one layer) are not stored
  int32_t connections_per_node = 2;  // that read; one more writes
};

inline constexpr int32_t kMaxBatchSize = 256;
inline constexpr int64_t kMaxBatchTokens = int64_t{1} << 24;
inline constexpr int64_t kMaxQueuedTokens = int64_t{1} << 40;

/// engine/serve/option_table.cc has the name and the allowed values of each.
struct EngineOptions {
  std::string model_path;       // a GGUF file, the first of its parts, or a Hugging Face folder
  std::string device = "auto";  // what computes: "auto", "cpu", "cuda", "cuda:N" or "reference"
  int32_t num_threads = 0;      // 0: one per available processor
  std::string gemm = "auto";    // cpu: "auto", "bf16", "f32", "int16" or "int8" (kernels::CpuBackendOptions)
  std::string map_weights;      // cpu: folder for the files that weights are mapped from; empty: in memory

  // A name in engine/text/chat/format_table.cc, or "auto": the template in the model's file.
  std::string chat_format = "auto";
  // The date for templates that state one: "today", which is the day of the start in UTC, or a day as
  // "2026-01-31". Prompts with different dates begin with different tokens, and so share no chunks.
  std::string chat_date = "today";

  // The correction of stored KV: a file that `kvblend calibrate` wrote, "none", or "auto": the model's path
  // with ".kvcorrection" appended, if there is such a file.
  std::string correction = "auto";
  // Learning the correction while serving: "on", "off", or "frozen": what was learned is applied, but no more
  // is learned. Off too where `correction` is "none".
  std::string learn_correction = "on";
  int64_t correction_learning_bytes = int64_t{256} << 20;  // main memory for learning it
  bool share_correction = true;          // learn together with the servers that share chunk_redis
  double share_correction_seconds = 60;  // the shortest time between two exchanges with them

  // Element type of KV in pages: "auto" (bf16, or f32 with f32 matrix products), "bf16", "f16", "f32" or
  // "int8".
  std::string kv_dtype = "auto";
  // Of KV in stored chunks: "auto" (int8, or kv_dtype where that is given), "int8", "int4", "fp8", "bf16",
  // "f16" or "f32".
  std::string chunk_format = "auto";
  // The longest prompt and answer together; 0: the model's own context length. With LongRoPE a shorter
  // context can rotate keys differently; the model then has another fingerprint, and chunks of the one are
  // not found by the other.
  int32_t max_context_tokens = 0;
  int32_t page_size = 64;  // tokens

  int32_t max_prefills = 4;  // prompts that are prefilled at the same time, taking turns
  // The longest time between two tokens of a running answer while prompts are prefilled; 0: 0.1 s, but at
  // least two and a half and at most six times a step of decoding.
  double itl_target_seconds = 0;
  int32_t max_batch_size = 8;    // answers decoded together, in one step
  int32_t max_draft_tokens = 7;  // guessed per step of an answer, where that is faster; 0: none
  double keep_conversations =
      0.5;                     // share of the KV pages that keep conversations for their next turns; 0: none
  bool share_prefixes = true;  // sequences that begin with the same exact tokens share these pages
  bool refine_idle = false;    // when idle, compute kept conversations that were blended in full
  // Room for the KV of the answers decoded together and of their prompts, at least max_context_tokens; 0:
  // four times that, or what fits on a GPU (engine/runtime/batch_tokens.h).
  int64_t max_batch_tokens = 0;

  int64_t chunk_store_bytes = int64_t{4} << 30;  // main memory for stored chunks
  std::string chunk_disk_path;                   // folder where stored chunks survive a restart; empty: none
  int64_t chunk_disk_bytes = int64_t{32} << 30;  // disk space for them
  RedisOptions chunk_redis = {};                 // through which servers share stored chunks
  NamespaceQuotas namespace_quotas = {};         // of chunk_store_bytes, and of chunk_disk_bytes
  bool prefetch_queued = true;      // bring stored chunks into memory while their prompt waits in the queue
  int32_t load_pipeline_depth = 2;  // layers that are read ahead while a layer is computed; 0: all

  RatioOptions ratio = {};             // for requests that do not set it
  std::string split_prompts = "none";  // Prompt::split, for prompts without chunks that do not set it
  int32_t max_queued_requests = 64;    // one more is refused with kResourceExhausted
  int64_t max_queued_tokens = 0;       // of all waiting requests; more are refused likewise; 0: no limit
  int32_t max_chunks_per_request = 1024;
  int64_t max_text_bytes = int64_t{8} << 20;  // of all texts of one request together
  bool self_check = true;                     // at the start, check that ratio 1 equals full prefill
};

}  // namespace kvblend
