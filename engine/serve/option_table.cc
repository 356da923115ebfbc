#include "engine/api/option_table.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plain_number.h"
#include "base/status_macros.h"
#include "engine/api/names.h"
#include "engine/runtime/compute_names.h"
#include "engine/runtime/model_text.h"
#include "engine/store/redis/transport.h"
#include "engine/text/chat/chat_format.h"
#include "kernels/device_choice.h"

namespace kvblend {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 60;
constexpr int64_t kMaxRedisValueBytes = int64_t{512} << 20;  // Redis takes no larger ones, unless told to
constexpr int32_t kMaxLayers = 1 << 16;                      // that a KV format may have
constexpr double kTenYears = 86400.0 * 3650;                 // seconds

constexpr char kCompute[] = "Model and computation";
constexpr char kMemory[] = "Memory";
constexpr char kRedis[] = "Chunks shared through Redis";
constexpr char kLimits[] = "Limits";

// Which part of the options a member belongs to.
template <typename T>
EngineOptions& PartOf(EngineOptions& options, T EngineOptions::*) {
  return options;
}
template <typename T>
RedisOptions& PartOf(EngineOptions& options, T RedisOptions::*) {
  return options.chunk_redis;
}
template <typename T>
NamespaceQuotas& PartOf(EngineOptions& options, T NamespaceQuotas::*) {
  return options.namespace_quotas;
}
template <auto kMember>
auto& In(EngineOptions& options) {
  return PartOf(options, kMember).*kMember;
}

absl::Status CheckGemm(std::string_view name) { return ParseTypeName(kGemms, "gemm", name).status(); }
absl::Status CheckChatDate(std::string_view date) { return ParseChatDate(date).status(); }
absl::Status CheckKvDtype(std::string_view name) {
  return ParseTypeName(kKvDtypes, "kv-dtype", name).status();
}
absl::Status CheckChunkFormat(std::string_view name) {
  return ParseTypeName(kChunkFormats, "chunk-format", name).status();
}
absl::Status CheckLearnCorrection(std::string_view name) {
  return ParseName<LearningState>("learn-correction", name).status();
}
absl::Status CheckSplitPrompts(std::string_view name) {
  return ParseName<PromptSplit>("split-prompts", name).status();
}
absl::Status CheckRedisNodes(std::string_view nodes) {
  if (nodes.empty()) return absl::OkStatus();
  const absl::Status status = store::redis::ParseEndpoints(nodes).status();
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("chunk-redis: ", status.message()));
}

template <typename T>
absl::Status CheckRange(const char* name, T value, T min, T max, const char* word_for_zero = nullptr,
                        bool above_min = false) {
  if ((above_min ? value > min : value >= min) && value <= max) return absl::OkStatus();  // NaN is neither
  const std::string zero = word_for_zero == nullptr ? "" : absl::StrCat(" (", word_for_zero, ")");
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", PlainNumber(value),
                                                 "; allowed: ", above_min ? "above " : "", PlainNumber(min),
                                                 zero, " to ", PlainNumber(max)));
}

// One value of the table.
struct Checker {
  const char* name;
  EngineOptions& options;

  template <typename T>
  absl::Status operator()(const NumberOption<T>& number) const {
    return CheckRange(name, number.field(options), number.min, number.max, number.word_for_zero,
                      number.above_min);
  }
  absl::Status operator()(const BytesOption& bytes) const {
    const int64_t value = bytes.field(options);
    if (value >= bytes.min && value <= bytes.max) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", PlainSize(value), "; allowed: ", PlainSize(bytes.min), " to ", PlainSize(bytes.max)));
  }
  absl::Status operator()(const TextOption& text) const {
    return text.check == nullptr ? absl::OkStatus() : text.check(text.field(options));
  }
  absl::Status operator()(const SwitchOption&) const { return absl::OkStatus(); }
  absl::Status operator()(const FileOption&) const { return absl::OkStatus(); }
  absl::Status operator()(const SharesOption&) const { return options.namespace_quotas.Check(); }
};

constexpr int32_t kMaxMinTokens = 1'000'000;

absl::Status CheckRatio(const RatioOptions& ratio) {
  KVBLEND_RETURN_IF_ERROR(CheckRange("ratio", ratio.ratio, 0.0, 1.0));
  KVBLEND_RETURN_IF_ERROR(CheckRange("ratio-min", ratio.min, 0.0, 1.0));
  KVBLEND_RETURN_IF_ERROR(CheckRange("ratio-max", ratio.max, 0.0, 1.0));
  KVBLEND_RETURN_IF_ERROR(CheckRange("min-recomputed-tokens", ratio.min_tokens, 0, kMaxMinTokens));
  if (ratio.min <= ratio.max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("ratio-min is ", ratio.min, "; allowed: 0 to ratio-max (", ratio.max, ")"));
}

absl::Status CheckRedis(const RedisOptions& redis) {
  if (redis.tls_certificate.empty() != redis.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "chunk-redis-tls-certificate and chunk-redis-tls-key: one is empty; allowed: both or neither");
  }
  if (redis.nodes.empty()) return absl::OkStatus();
  const bool has_tls_settings =
      !redis.tls_ca.empty() || !redis.tls_certificate.empty() || !redis.tls_server_name.empty();
  if (has_tls_settings && !redis.tls) {
    return absl::InvalidArgumentError("chunk-redis-tls is off, but there are settings for TLS");
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<EngineOption>& EngineOptionTable() {
  using Int = NumberOption<int32_t>;
  using Real = NumberOption<double>;
  using Redis = RedisOptions;
  static const auto& table = *new std::vector<EngineOption>{
      {"device", kCompute, "DEVICE",
       "What computes: auto (a usable GPU, else the CPU), cpu, cuda, cuda:N (the N-th visible GPU), or "
       "reference (slow, for comparisons)",
       TextOption{In<&EngineOptions::device>, kernels::CheckDeviceName}},
      {"threads", kCompute, "N", "Threads that compute; 0: one per available processor",
       Int{In<&EngineOptions::num_threads>, 0, 1024}},
      {"gemm", kCompute, "TYPE",
       absl::StrCat(
           "Arithmetic of matrix products on the CPU: ", ListOf(kGemms),
           "; auto: bf16 where the processor has fast instructions for it, else int16 where that is faster than "
           "f32, and layers that lose little in 8 bits where that is faster"),
       TextOption{In<&EngineOptions::gemm>, CheckGemm}},
      {"map-weights", kCompute, "FOLDER",
       "For models larger than main memory: keep the weights in mapped files in this folder, so that experts that no token "
       "chooses take no memory. Wants a fast disk with room for the model; empty: weights stay in memory",
       TextOption{In<&EngineOptions::map_weights>}},
      {"chat-format", kCompute, "NAME",
       absl::StrCat("Format that prompts are written in: ", text::ChatFormatNames(),
                    "; auto: the one of the template in the model's file"),
       TextOption{In<&EngineOptions::chat_format>, text::CheckChatFormatName}},
      {"chat-date", kCompute, "DATE",
       "Date for chat templates that state one: today (the day of the start, in UTC) or a day such as 2026-01-31. Prompts "
       "with different dates share no chunks",
       TextOption{In<&EngineOptions::chat_date>, CheckChatDate}},
      {"correction", kCompute, "FILE",
       "Learned correction of stored KV: a file that `kvblend calibrate` wrote; auto: MODEL.kvcorrection if that file exists; "
       "none",
       TextOption{In<&EngineOptions::correction>}},
      {"learn-correction", kCompute, "MODE",
       "Whether to learn the correction while serving, from chunks that were missing: on; off; frozen: apply what was "
       "learned before, but learn no more",
       TextOption{In<&EngineOptions::learn_correction>, CheckLearnCorrection}},
      {"refine-idle", kCompute, "",
       "When idle, compute the KV of kept conversations again as full prefill would, so that later turns read exact KV "
       "(off by default)",
       SwitchOption{In<&EngineOptions::refine_idle>}},
      {"split-prompts", kCompute, "HOW",
       "For prompts without chunks that do not say it themselves: look for passages in the text and treat them as chunks. "
       "stored: only the texts of known chunks; passages: paragraphs too; none: leave the text as it is",
       TextOption{In<&EngineOptions::split_prompts>, CheckSplitPrompts}},
      {"self-check", kCompute, "",
       "At start-up, check on a short prompt that ratio 1 equals full prefill (on by default)",
       SwitchOption{In<&EngineOptions::self_check>}},

      {"kv-dtype", kMemory, "TYPE",
       absl::StrCat("Element type of KV in pages: ", ListOf(kKvDtypes),
                    "; auto: bf16, or f32 with f32 matrix products; int8 takes half of bf16's memory"),
       TextOption{In<&EngineOptions::kv_dtype>, CheckKvDtype}},
      {"chunk-format", kMemory, "FORMAT",
       absl::StrCat("Number format of KV in stored chunks: ", ListOf(kChunkFormats),
                    "; auto: int8, or the kv-dtype where that is given"),
       TextOption{In<&EngineOptions::chunk_format>, CheckChunkFormat}},
      {"correction-learning-bytes", kMemory, "SIZE",
       "Main memory for learning a correction; for a model that would need more, only scales and offsets are learned",
       BytesOption{In<&EngineOptions::correction_learning_bytes>, int64_t{1} << 20, kMaxBytes}},
      {"max-context-tokens", kMemory, "N",
       "Most tokens of a prompt and its answer; 0: the model's own context length",
       Int{In<&EngineOptions::max_context_tokens>, 0, std::numeric_limits<int32_t>::max()}},
      {"keep-conversations", kMemory, "SHARE",
       "Share of the KV pages in which conversations are kept for their next turns. Running requests take these pages when "
       "they need them; 0: none are kept",
       Real{In<&EngineOptions::keep_conversations>, 0, 1}},
      {"share-prefixes", kMemory, "",
       "Let requests that begin with the same exact tokens share the KV pages of that beginning (on by default)",
       SwitchOption{In<&EngineOptions::share_prefixes>}},
      {"page-size", kMemory, "N", "Tokens per KV page", Int{In<&EngineOptions::page_size>, 1, 1024}},
      {"chunk-store-bytes", kMemory, "SIZE", "Main memory for stored chunks",
       BytesOption{In<&EngineOptions::chunk_store_bytes>, 0, kMaxBytes}},
      {"chunk-disk-path", kMemory, "DIR",
       "Folder where stored chunks survive a restart; empty: none. One process per folder",
       TextOption{In<&EngineOptions::chunk_disk_path>}},
      {"chunk-disk-bytes", kMemory, "SIZE", "Disk space for stored chunks",
       BytesOption{In<&EngineOptions::chunk_disk_bytes>, 0, kMaxBytes}},
      {"chunk-namespace-share", kMemory, "SHARE",
       "Largest share of the memory and of the disk space for stored chunks that one namespace may fill",
       Real{In<&NamespaceQuotas::default_share>, 0, 1, nullptr, /*above_min=*/true}},
      {"chunk-namespace-shares", kMemory, "NAME=SHARE",
       "The same for namespaces by name: NAME=SHARE[,NAME=SHARE...]",
       SharesOption{In<&NamespaceQuotas::named>}},
      {"prefetch-queued", kMemory, "",
       "While a prompt waits in the queue, bring its stored chunks into main memory (on by default)",
       SwitchOption{In<&EngineOptions::prefetch_queued>}},
      {"load-pipeline-depth", kMemory, "N",
       "How many layers are read ahead from disk or network while a layer is computed; 0 or all: every layer from the "
       "beginning",
       Int{In<&EngineOptions::load_pipeline_depth>, 0, kMaxLayers, "all"}},

      {"chunk-redis", kRedis, "HOST:PORT[,HOST:PORT...]",
       "Redis Cluster, or one Redis server, through which several servers share stored chunks; empty: none",
       TextOption{In<&Redis::nodes>, CheckRedisNodes}},
      {"chunk-redis-user", kRedis, "NAME", "Name in Redis's ACL; empty: the default user",
       TextOption{In<&Redis::user>}},
      {"chunk-redis-tls", kRedis, "", "Speak TLS with Redis, and verify its certificates",
       SwitchOption{In<&Redis::tls>}},
      {"chunk-redis-tls-ca", kRedis, "FILE", "PEM certificate authorities; not given: the system's",
       FileOption{In<&Redis::tls_ca>}},
      {"chunk-redis-tls-certificate", kRedis, "FILE",
       "PEM certificate that Redis is shown, with --chunk-redis-tls-key",
       FileOption{In<&Redis::tls_certificate>}},
      {"chunk-redis-tls-key", kRedis, "FILE", "PEM private key of the certificate",
       FileOption{In<&Redis::tls_key>}},
      {"chunk-redis-tls-server-name", kRedis, "NAME",
       "Name that the nodes' certificates are for; empty: each node's own host",
       TextOption{In<&Redis::tls_server_name>}},
      {"chunk-redis-ttl", kRedis, "SECONDS", "How long a chunk stays after its last use; 0: for ever",
       Real{In<&Redis::ttl_seconds>, 0, kTenYears}},
      {"chunk-redis-budget", kRedis, "SECONDS",
       "Longest wait for a Redis that does not answer: for all lookups of a prompt; for a layer",
       Real{In<&Redis::budget_seconds>, 0.001, 60}},
      {"chunk-redis-max-value-bytes", kRedis, "SIZE",
       "Chunks of which one layer's K or V is larger are not stored in Redis",
       BytesOption{In<&Redis::max_value_bytes>, 1, kMaxRedisValueBytes}},
      {"chunk-redis-connections", kRedis, "N", "Connections per node for reading; one more writes",
       Int{In<&Redis::connections_per_node>, 1, 64}},
      {"share-correction", kRedis, "",
       "Learn the correction together with all servers on this Redis that serve the same model (on by default)",
       SwitchOption{In<&EngineOptions::share_correction>}},
      {"share-correction-interval", kRedis, "SECONDS",
       "Shortest time between two exchanges of what these servers have learned from",
       Real{In<&EngineOptions::share_correction_seconds>, 0.1, 3600}},

      {"max-queued-requests", kLimits, "N",
       "Most requests that may wait; one more is refused with RESOURCE_EXHAUSTED",
       Int{In<&EngineOptions::max_queued_requests>, 1, 1'000'000}},
      {"max-queued-tokens", kLimits, "N",
       "Most tokens that all waiting requests may have together; one request alone may always wait; 0: no limit",
       NumberOption<int64_t>{In<&EngineOptions::max_queued_tokens>, 0, kMaxQueuedTokens}},
      {"max-prefills", kLimits, "N", "Most prompts that are prefilled at the same time, taking turns",
       Int{In<&EngineOptions::max_prefills>, 1, kMaxBatchSize}},
      {"itl-target", kLimits, "SECONDS",
       "Longest time between two tokens of a running answer while prompts are prefilled; 0: 0.1 s, but at least two and a "
       "half and at most six times a step of decoding",
       Real{In<&EngineOptions::itl_target_seconds>, 0, 60}},
      {"max-batch-size", kLimits, "N", "Most answers that are decoded together in one step",
       Int{In<&EngineOptions::max_batch_size>, 1, kMaxBatchSize}},
      {"max-draft-tokens", kLimits, "N",
       "Most tokens of an answer that are guessed from its prompt and checked in one step of decoding, where that is faster; "
       "the answer is the same; 0: none",
       Int{In<&EngineOptions::max_draft_tokens>, 0, 64}},
      {"max-batch-tokens", kLimits, "N",
       "Room for the KV of the answers that are decoded together and of their prompts, in tokens; 0: four times the context; "
       "on a GPU as much as these answers can need and its free memory holds",
       NumberOption<int64_t>{In<&EngineOptions::max_batch_tokens>, 0, kMaxBatchTokens}},
      {"max-chunks-per-request", kLimits, "N", "Most chunks in one request",
       Int{In<&EngineOptions::max_chunks_per_request>, 1, 1'000'000}},
      {"max-text-bytes", kLimits, "SIZE", "Most bytes that all texts of one request may have together",
       BytesOption{In<&EngineOptions::max_text_bytes>, 1, kMaxBytes}},
  };
  return table;
}

absl::Status CheckEngineOptions(EngineOptions options) {
  for (const EngineOption& option : EngineOptionTable()) {
    KVBLEND_RETURN_IF_ERROR(std::visit(Checker{option.name, options}, option.value));
  }
  KVBLEND_RETURN_IF_ERROR(CheckRatio(options.ratio));
  return CheckRedis(options.chunk_redis);
}

}  // namespace kvblend
