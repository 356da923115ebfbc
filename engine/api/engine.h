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
#include "engine/api/chunk_catalog.h"
#include "engine/api/names.h"
#include "engine/api/options.h"
#include "engine/api/request.h"
#include "engine/api/stats.h"

namespace kvblend {

/// Receives the events of one Generate request in this order: OnPrompt once, OnText any number of times,
/// OnDone once. After an error only OnDone comes, with that error; of what was not reported it tells how much
/// was computed (computed_tokens.h).
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
  /// Called while the model is loaded, on the thread that calls Create: how many bytes of its tensors have
  /// been read.
  using LoadObserver = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

  /// Loads the model, reserves pages and checks itself. kFailedPrecondition when the self-check fails.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                        const LoadObserver& on_load = nullptr);
  /// Ends what is left with kUnavailable (Drain first to let it finish).
  virtual ~Engine() = default;

  /// Requests are checked here: on error the observer is never called.
  /// kInvalidArgument: bad field. kResourceExhausted: queue full. kUnavailable: draining.
  virtual absl::StatusOr<std::shared_ptr<RequestHandle>> Generate(
      GenerateRequest request, std::shared_ptr<GenerateObserver> observer) = 0;
  virtual absl::StatusOr<std::shared_ptr<RequestHandle>> Score(ScoreRequest request,
                                                               std::shared_ptr<ScoreObserver> observer) = 0;
  virtual absl::StatusOr<std::shared_ptr<RequestHandle>> PutChunks(
      PutChunksRequest request, std::shared_ptr<PutChunksObserver> observer) = 0;

  /// Finds chunks, and begins to bring into memory those that are only in lower tiers. Chunks that are stored
  /// nowhere are not computed. Results are in the request's order. kInvalidArgument: bad field.
  virtual absl::StatusOr<std::vector<PrefetchedChunk>> PrefetchChunks(PrefetchChunksRequest request) = 0;

  /// The stored chunks, for operators.
  virtual ChunkCatalog& chunks() = 0;

  /// Cuts a document into chunks and looks them up; computes nothing. On the caller's thread: some
  /// microseconds per token. kInvalidArgument: bad field; kCancelled: request.gone says so.
  virtual absl::StatusOr<DocumentChunks> SplitDocument(const SplitDocumentRequest& request) = 0;

  /// How many tokens a text has on its own, which is how chunks are tokenized.
  virtual absl::StatusOr<int32_t> CountTokens(std::string_view text) = 0;

  /// Controls what is learned of stored KV while serving, and returns the state after that. May take as long
  /// as fitting one layer. kFailedPrecondition: kLearn where learning is off or not possible; kFreeze or
  /// kReset where it is off.
  virtual absl::StatusOr<CorrectionStats> UpdateCorrection(CorrectionAction action) = 0;

  virtual const EngineInfo& info() const = 0;
  virtual EngineStats Stats() const = 0;

  /// Refuses new requests, finishes the accepted ones, the chunk computations behind them and the writing of
  /// chunks to disk; after `deadline` cancels what is left. Returns kDeadlineExceeded when something had to
  /// be cancelled.
  virtual absl::Status Drain(absl::Time deadline) = 0;
};

/// The values that EngineInfo::model_fingerprint can have for a model file, without loading it. The first one
/// is that of a server with the model's own context. With LongRoPE there may be a second one, for a shorter
/// context (EngineOptions::max_context_tokens). kNotFound, kInvalidArgument or kUnimplemented naming the
/// file.
absl::StatusOr<std::vector<std::string>> ModelFingerprints(const std::string& model_path);

}  // namespace kvblend
