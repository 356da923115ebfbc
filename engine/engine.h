// The engine's public API: everything that a server, a command line or a test needs, and nothing of any
// transport.
//
// Threads: every method may be called from any thread. Observers are called on the engine's own thread, one
// call at a time; they must return quickly and may not call back into the engine except
// RequestHandle::Cancel. Errors carry the code that a client should see; messages name the field or thing,
// its value and what is allowed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/redis_options.h"
#include "engine/request.h"
#include "engine/store/chunk_store.h"
#include "engine/store/disk/disk_tier_stats.h"
#include "engine/store/redis/redis_tier_stats.h"

namespace kvblend {

inline constexpr int32_t kMaxLoadPipelineDepth = 1 << 16;  // as many layers as a KV format may have

inline constexpr int32_t kMaxBatchSize = 256;

struct EngineOptions {
  std::string model_path;         // a GGUF file
  std::string device = "auto";    // what computes: "auto", "cpu", "cuda", "cuda:N" or "reference"
  int32_t num_threads = 0;        // 0: one per available processor
  bool pin_threads = false;       // each worker thread of the CPU backend to a processor of its own
  std::string gemm = "auto";      // cpu: "auto", "bf16", "f32" or "int8" (kernels::CpuBackendOptions)
  std::string kv_dtype = "auto";  // pages: "auto" (bf16, or f32 with fp32 GEMMs), "bf16", "f16", "f32", or
                                  // "int8" (half of bf16's memory)
  std::string chunk_format = "auto";  // stored chunks: "int8", "int4", "fp8", "bf16", "f16" or "f32"; auto:
                                      // int8, or kv_dtype where that is not auto
  int32_t max_context_tokens = 0;     // prompt and completion; 0: the model's own context length
  int32_t page_size = 64;             // tokens
  int32_t max_batch_size = 8;         // answers decoded together, 1 to kMaxBatchSize
  int64_t max_batch_tokens = 0;  // their KV, each with all that may still come; at least max_context_tokens;
                                 // 0: four times that
  int64_t chunk_store_bytes = int64_t{4} << 30;
  std::string chunk_disk_path;  // folder where stored chunks outlive the process; empty: none
  int64_t chunk_disk_bytes = int64_t{32} << 30;  // what they may take there
  RedisOptions chunk_redis = {};                 // what replicas share stored chunks through
  store::NamespaceQuotas namespace_quotas = {};  // of chunk_store_bytes, and of chunk_disk_bytes
  bool prefetch_queued = true;                   // bring stored chunks into memory while their prompt waits
  int32_t load_pipeline_depth = 2;  // while layer l computes, layers up to l + depth are on their way; 0: all
  RatioOptions ratio = {};          // where a request says nothing of it
  int32_t max_queued_requests = 64;  // beyond: kResourceExhausted
  int32_t max_chunks_per_request = 1024;
  int64_t max_text_bytes = int64_t{8} << 20;  // all texts of one request together
  bool self_check = true;                     // at start-up: ratio 1 must equal full prefill
};

struct EngineInfo {
  std::string version;
  std::string model_name;
  std::string model_architecture;
  std::string model_fingerprint;  // hex
  std::string device;             // what computes: "cpu", "cuda:0", "reference"
  std::string device_name;        // what it calls itself
  std::string device_reason;      // why it was chosen
  std::string backend;            // one line for people
  std::string kv_dtype;           // of pages
  std::string chunk_format;       // of stored chunks
  int64_t chunk_bytes_per_token = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t hidden_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  int32_t page_size = 0;
  int32_t max_batch_size = 0;        // answers decoded together
  int64_t max_batch_tokens = 0;      // of their KV
  double self_check_max_error = -1;  // largest logit difference relative to the logits' norm; -1: not run
};

/// What the loading controller has measured.
struct LoadingStats {
  std::map<Tier, double> read_bytes_per_second;  // of tiers that were read from
  double compute_seconds_per_token = 0;  // through all layers, in the middle of 4,096 tokens; 0: not measured
  double place_seconds_per_token =
      0;  // stored KV in main memory -> pages, through all layers; 0: not measured
};

/// Of a device that has memory of its own: what is in use, by whomever, and what there is.
struct DeviceMemoryStats {
  int64_t used_bytes = 0;
  int64_t total_bytes = 0;
};

/// A snapshot for metrics and dashboards.
struct EngineStats {
  int32_t requests_waiting = 0;
  int32_t requests_running = 0;
  int32_t sequences_decoding = 0;  // of the running: answers that get a token each per step
  int64_t decode_steps = 0;        // since start
  int64_t decoded_tokens = 0;      // since start, by those steps
  int32_t background_waiting = 0;  // chunk computations behind responses
  int32_t pages_used = 0;
  int32_t pages_total = 0;
  int64_t background_chunks_stored = 0;            // since start
  int64_t background_chunks_failed = 0;            // since start
  std::optional<DeviceMemoryStats> device_memory;  // on a GPU
  LoadingStats loading;
  store::StoreStats store;
  std::optional<store::DiskTierStats> disk;    // with a chunk_disk_path
  std::optional<store::RedisTierStats> redis;  // with chunk_redis.nodes
};

/// Receives one Generate request's events in this order: OnPrompt once, OnText any number of times, OnDone
/// once. After an error only OnDone comes, with that error.
class GenerateObserver {
 public:
  virtual ~GenerateObserver() = default;
  virtual void OnPrompt(const PromptReport& report) = 0;
  virtual void OnText(const TextDelta& delta) = 0;
  virtual void OnDone(const absl::Status& status, const GenerateResult& result) = 0;
};

/// OnPrompt once, OnToken once per continuation token, OnDone once.
class ScoreObserver {
 public:
  virtual ~ScoreObserver() = default;
  virtual void OnPrompt(const PromptReport& report) = 0;
  virtual void OnToken(const ScoredToken& token) = 0;
  virtual void OnDone(const absl::Status& status) = 0;
};

/// OnProgress per chunk in order, once it is on disk where there is one, else as soon as it is stored; OnDone
/// once. On error the chunks reported so far stay stored.
class PutChunksObserver {
 public:
  virtual ~PutChunksObserver() = default;
  virtual void OnProgress(const PutChunkProgress& progress) = 0;
  virtual void OnDone(const absl::Status& status) = 0;
};

/// A submitted request. Dropping the handle does not cancel it.
class RequestHandle {
 public:
  virtual ~RequestHandle() = default;
  /// Stops the request within one layer's work; OnDone gets kCancelled unless the request had already ended.
  /// Idempotent.
  virtual void Cancel() = 0;
};

class Engine {
 public:
  /// Loads the model, reserves pages and checks itself. kFailedPrecondition when the self-check fails.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  /// Cancels what is left (Drain first to let it finish).
  virtual ~Engine() = default;

  /// Requests are checked here: on error the observer is never called.
  /// kInvalidArgument: bad field. kResourceExhausted: queue full. kUnavailable: draining.
  virtual absl::StatusOr<std::shared_ptr<RequestHandle>> Generate(
      GenerateRequest request, std::shared_ptr<GenerateObserver> observer) = 0;
  virtual absl::StatusOr<std::shared_ptr<RequestHandle>> Score(ScoreRequest request,
                                                               std::shared_ptr<ScoreObserver> observer) = 0;
  virtual absl::StatusOr<std::shared_ptr<RequestHandle>> PutChunks(
      PutChunksRequest request, std::shared_ptr<PutChunksObserver> observer) = 0;

  /// Finds chunks, and starts bringing those that are only in lower tiers into memory; what is stored nowhere
  /// is not computed. In the request's order. kInvalidArgument: bad field.
  virtual absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(PrefetchChunksRequest request) = 0;

  /// The chunk store, for Stat, List, Erase, Pin and Clear.
  virtual store::ChunkStore& chunk_store() = 0;

  /// Cuts a document into chunks and looks them up; computes nothing. On the caller's thread: some
  /// microseconds per token. kInvalidArgument: bad field.
  virtual absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) = 0;

  /// Number of tokens of a text on its own, as a chunk would have.
  virtual absl::StatusOr<int32_t> CountTokens(std::string_view text) = 0;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats Stats() const = 0;

  /// Refuses new requests, finishes the accepted ones, the chunk computations behind them and the writing of
  /// chunks to disk; after `deadline` cancels what is left. Returns kDeadlineExceeded when something had to
  /// be cancelled.
  virtual absl::Status Drain(absl::Time deadline) = 0;
};

/// The fingerprint in EngineInfo of a model file, without loading it. kNotFound, kInvalidArgument or
/// kUnimplemented naming the file.
absl::StatusOr<std::string> ModelFingerprint(const std::string& model_path);

/// OK for what EngineOptions.device may be, whether or not it is there; else kInvalidArgument listing it.
absl::Status CheckDeviceName(std::string_view device);

/// Names as clients write them: "query", "hkvd", ... ; "chunks", "prefix", "nothing"; "anchored", "isolated";
/// "value", "key"; "fixed", "auto".
std::string_view Name(Policy policy);
std::string_view Name(Reuse reuse);
std::string_view Name(Anchoring anchoring);
std::string_view Name(ChunkSource source);
std::string_view Name(Tier tier);
std::string_view Name(FinishReason reason);
std::string_view Name(DeviationSource source);
std::string_view Name(RatioMode mode);
/// kInvalidArgument listing the allowed names.
absl::StatusOr<Policy> ParsePolicy(std::string_view name);
absl::StatusOr<Reuse> ParseReuse(std::string_view name);
absl::StatusOr<Anchoring> ParseAnchoring(std::string_view name);
absl::StatusOr<DeviationSource> ParseDeviationSource(std::string_view name);
absl::StatusOr<RatioMode> ParseRatioMode(std::string_view name);

}  // namespace kvblend
