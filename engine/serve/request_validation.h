// Checks of requests against the engine's limits, and their tokenization: all that can be refused before
// queueing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/engine.h"
#include "engine/api/request.h"
#include "engine/prompt/document_splitter.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"

namespace kvblend {

/// Thread-safe. Errors are kInvalidArgument naming field, value and what is allowed.
class RequestValidator {
 public:
  /// References must outlive it.
  RequestValidator(const EngineOptions& options, const ModelRuntime& runtime)
      : options_(options), runtime_(runtime) {}

  absl::Status Check(const GenerateRequest& request) const;
  absl::Status Check(const ScoreRequest& request) const;
  absl::Status Check(const PutChunksRequest& request) const;
  absl::Status Check(const SplitDocumentRequest& request) const;
  absl::Status Check(const PrefetchChunksRequest& request) const;

  /// The prompt's tokens; leaves room for `reserved_tokens` more in the context.
  absl::StatusOr<prompt::PromptLayout> Layout(const Prompt& prompt, int32_t reserved_tokens) const;

  /// The tokens to score, from whichever of the two fields is given.
  absl::StatusOr<std::vector<int32_t>> Continuation(const ScoreRequest& request) const;

  /// The chunks' tokens; each must fit into the context behind the anchor.
  absl::StatusOr<std::vector<std::vector<int32_t>>> ChunkTokens(const PutChunksRequest& request,
                                                                int64_t anchor_tokens) const;
  /// Empty for isolated chunks.
  absl::StatusOr<std::vector<int32_t>> AnchorTokens(Anchoring anchoring, std::string_view system_text,
                                                    std::string_view lead_in) const;
  /// The splitter's options, such that every chunk fits into the context behind the anchor.
  absl::StatusOr<prompt::SplitOptions> SplitOptions(const SplitDocumentRequest& request,
                                                    int64_t anchor_tokens) const;

 private:
  absl::Status CheckCaller(const Caller& caller) const;
  absl::Status CheckReadNamespaces(const std::string& field, const std::vector<std::string>& names) const;
  absl::Status CheckChunkCount(size_t count) const;
  absl::Status CheckTextBytes(int64_t bytes) const;
  /// `other_bytes`: of the request's other texts.
  absl::Status CheckPrompt(const Prompt& prompt, int64_t other_bytes) const;

  const EngineOptions& options_;
  const ModelRuntime& runtime_;
};

}  // namespace kvblend
