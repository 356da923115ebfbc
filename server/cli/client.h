// What commands can ask of an engine, wherever it runs: in this process or behind gRPC. Commands and the
// bench are written once against this interface.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/engine.h"
#include "engine/api/request.h"

namespace kvblend::server::cli {

/// Callbacks may be left empty. They run on the calling thread, before the call returns.
struct GenerateCallbacks {
  std::function<void(const PromptReport&)> on_prompt;
  std::function<void(const TextDelta&)> on_text;
};

struct Scores {
  PromptReport prompt;
  std::vector<ScoredToken> tokens;  // one per continuation token
};

/// One stored chunk. Times are seconds since 1970-01-01 UTC.
struct ChunkInfo {
  std::string key = {};  // 64 hex digits
  Tier tier = Tier::kHostMemory;
  int32_t num_tokens = 0;
  int64_t size_bytes = 0;
  bool pinned = false;
  std::string label = {};
  std::string anchor_hash = {};
  int64_t hits = 0;
  double created_unix_seconds = 0;
  double last_used_unix_seconds = 0;
  double compute_seconds = 0;
};

struct ChunkPage {
  std::vector<ChunkInfo> chunks;
  std::string next_page_token;  // empty on the last page
};

struct StatResult {
  std::vector<ChunkInfo> chunks;  // those found, in the order asked
  std::vector<std::string> missing_keys;
};

struct ChangeResult {
  int64_t changed = 0;
  std::vector<std::string> missing_keys;
};

struct StoreSummary {
  int64_t entries = 0;
  int64_t used_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t pinned_entries = 0;
  int64_t lookups = 0;
  int64_t hits = 0;
  int64_t evictions = 0;
};

struct DiskSummary {
  int64_t entries = 0;
  int64_t used_bytes = 0;
  int64_t quota_bytes = 0;
  int64_t pinned_entries = 0;
  int64_t hits = 0;
  int64_t evictions = 0;
  int64_t quarantined = 0;
  bool failing = false;
};

struct RedisSummary {
  int32_t nodes = 0;
  int32_t nodes_working = 0;
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t lookup_errors = 0;
  int64_t puts = 0;
  int64_t put_failures = 0;
  int64_t damaged = 0;
};

struct Info {
  EngineInfo engine;
  StoreSummary store;
  std::optional<DiskSummary> disk;                 // absent without a disk for chunks
  std::optional<RedisSummary> redis;               // absent without a Redis for chunks
  std::optional<DeviceMemoryStats> device_memory;  // absent on the CPU
  int32_t pages_used = 0;
  int32_t pages_total = 0;
  int32_t requests_waiting = 0;
  int32_t requests_running = 0;
  int32_t sequences_decoding = 0;
};

/// Calls block until they are done; Ctrl-C ends them with kCancelled (see cancellation.h). Thread-safe.
/// Errors carry the engine's code and message; kUnavailable when a server cannot be reached.
class EngineClient {
 public:
  virtual ~EngineClient() = default;

  virtual absl::StatusOr<GenerateResult> Generate(const GenerateRequest& request,
                                                  const GenerateCallbacks& callbacks) = 0;
  virtual absl::StatusOr<Scores> Score(const ScoreRequest& request) = 0;
  virtual absl::Status PutChunks(const PutChunksRequest& request,
                                 const std::function<void(const PutChunkProgress&)>& on_progress) = 0;

  virtual absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) = 0;
  virtual absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(
      const PrefetchChunksRequest& request) = 0;

  virtual absl::StatusOr<StatResult> StatChunks(const std::string& tenant_namespace,
                                                absl::Span<const std::string> keys) = 0;
  /// `page_size` 0: the engine's default.
  virtual absl::StatusOr<ChunkPage> ListChunks(const std::string& tenant_namespace, int32_t page_size,
                                               const std::string& page_token) = 0;
  virtual absl::StatusOr<ChangeResult> DeleteChunks(const std::string& tenant_namespace,
                                                    absl::Span<const std::string> keys) = 0;
  /// Every chunk of the namespace, pinned ones included.
  virtual absl::StatusOr<ChangeResult> DeleteAllChunks(const std::string& tenant_namespace) = 0;
  virtual absl::StatusOr<ChangeResult> PinChunks(const std::string& tenant_namespace,
                                                 absl::Span<const std::string> keys, bool pinned) = 0;

  virtual absl::StatusOr<Info> GetInfo() = 0;

  /// kUnavailable unless requests are accepted.
  virtual absl::Status CheckHealth() = 0;
};

}  // namespace kvblend::server::cli
