// What an engine is made with. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/api/request.h"

namespace kvblend {

/// What namespaces may fill of each tier that counts them (memory and disk): a share of its bytes, and where one is given, so
/// many bytes at most. A namespace that has used that up gives up its own entries for new ones; the others' stay.
struct NamespaceQuotas {
  double default_share = 1.0;                 // of every namespace that is not named; (0, 1]
  std::map<std::string, double> named = {};   // (0, 1]
  std::map<std::string, int64_t> bytes = {};  // above 0; of tenants, see ChunkCatalog::LimitNamespaces

  bool limited() const { return default_share < 1 || !named.empty() || !bytes.empty(); }
  int64_t BytesOf(std::string_view tenant_namespace, int64_t tier_bytes) const;
  /// The limit in words: "namespace 'acme' may fill 1000 bytes (store_bytes of its tenant)".
  std::string Describe(std::string_view tenant_namespace, int64_t tier_bytes) const;
  /// kInvalidArgument naming the namespace, its share and what is allowed.
  absl::Status Check() const;
};

/// How to reach the Redis that stored chunks are shared through.
struct RedisOptions {
  std::string nodes;          // "host:port[,host:port...]", of one cluster or one server; empty: none
  std::string user;           // of an ACL; empty: the default user
  std::string password;       // that, or the file
  std::string password_file;  // its first line
  bool tls = false;
  std::string tls_ca;           // PEM; empty: the system's authorities
  std::string tls_certificate;  // PEM, with its key: what this client shows
  std::string tls_key;
  std::string tls_server_name;   // what the nodes' certificates are for; empty: their addresses
  double ttl_seconds = 86400;    // since the last hit, about; 0: for ever
  double budget_seconds = 0.05;  // what Redis may cost a prompt
  int64_t max_value_bytes = int64_t{64} << 20;  // chunks with a larger section are not stored
  int32_t connections_per_node = 2;             // for reading
};

inline constexpr int32_t kMaxBatchSize = 256;
inline constexpr int64_t kMaxBatchTokens = int64_t{1} << 24;
inline constexpr int64_t kMaxQueuedTokens = int64_t{1} << 40;

/// What is allowed, and what users call it: engine/serve/option_table.cc.
struct EngineOptions {
  std::string model_path;       // a GGUF file
  std::string device = "auto";  // what computes: "auto", "cpu", "cuda", "cuda:N" or "reference"
  int32_t num_threads = 0;      // 0: one per available processor
  std::string gemm = "auto";    // cpu: "auto", "bf16", "f32", "int16" or "int8" (kernels::CpuBackendOptions)
  std::string map_weights;      // cpu: the folder of the files that weights are mapped from; empty: in memory
  std::string chat_format =
      "auto";  // by name (engine/text/chat/format_table.cc), or what the model's template writes
  // What templates that tell the date are told: "today", that of the start in UTC, or a day as "2026-01-31". Prompts of
  // different dates begin with different tokens, and share no chunks.
  std::string chat_date = "today";
  // The correction of stored KV: a file that `kvblend calibrate` wrote, "none", or "auto": the model's path
  // with ".kvcorrection" behind it, if there is such a file.
  std::string correction = "auto";
  // While serving: "on", "off", or "frozen": what was learned is applied, and no more is learned; off too where
  // `correction` is "none".
  std::string learn_correction = "on";
  int64_t correction_learning_bytes = int64_t{256} << 20;  // for what it is learned from
  bool share_correction = true;  // fit what replicas have seen that share chunks through chunk_redis, too
  double share_correction_seconds = 60;  // between two times that they tell each other
  std::string kv_dtype = "auto";  // pages: "auto" (bf16, or f32 with fp32 GEMMs), "bf16", "f16", "f32", or
                                  // "int8" (half of bf16's memory)
  std::string chunk_format = "auto";  // stored chunks: "int8", "int4", "fp8", "bf16", "f16" or "f32"; auto:
                                      // int8, or kv_dtype where that is not auto
  // Prompt and completion; 0: the model's own context length. Chunks are another model's where LongRoPE rotates contexts of
  // this length in another way.
  int32_t max_context_tokens = 0;
  int32_t page_size = 64;    // tokens
  int32_t max_prefills = 4;  // prompts in progress at the same time, taking turns
  // What answers' tokens may be apart while prompts are prefilled. 0: five times a step of decoding, less where that is
  // more than 0.1 s, but two and a half times in any case.
  double itl_target_seconds = 0;
  int32_t max_batch_size = 8;    // answers decoded together
  int32_t max_draft_tokens = 7;  // of an answer guessed per step, where that is faster; 0: none
  double keep_conversations =
      0.5;  // share of the KV pages for sequences of answers that are over, for next turns; 0: none
  bool share_prefixes = true;  // sequences that begin with the same exact tokens hold these pages together
  bool refine_idle =
      false;  // while there is nothing else to do, prefill in full what is kept and was blended
  int64_t max_batch_tokens = 0;  // their KV, and their prompts'; at least max_context_tokens;
                                 // 0: four times that, or what fits on a GPU (engine/runtime/batch_tokens.h)
  int64_t chunk_store_bytes = int64_t{4} << 30;
  std::string chunk_disk_path;  // folder where stored chunks outlive the process; empty: none
  int64_t chunk_disk_bytes = int64_t{32} << 30;  // what they may take there
  RedisOptions chunk_redis = {};                 // what replicas share stored chunks through
  NamespaceQuotas namespace_quotas = {};         // of chunk_store_bytes, and of chunk_disk_bytes
  bool prefetch_queued = true;                   // bring stored chunks into memory while their prompt waits
  int32_t load_pipeline_depth = 2;  // while layer l computes, layers up to l + depth are on their way; 0: all
  RatioOptions ratio = {};          // where a request says nothing of it
  std::string split_prompts = "none";  // where a prompt without chunks says nothing of it: Prompt::split
  int32_t max_queued_requests = 64;    // beyond: kResourceExhausted
  int64_t max_queued_tokens = 0;  // of waiting requests together, beyond: kResourceExhausted; 0: any number
  int32_t max_chunks_per_request = 1024;
  int64_t max_text_bytes = int64_t{8} << 20;  // all texts of one request together
  bool self_check = true;                     // at start-up: ratio 1 must equal full prefill
};

}  // namespace kvblend
