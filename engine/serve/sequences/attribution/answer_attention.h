// What the tokens of an answer attend to, chunk by chunk, measured while they are decoded.
//
// A chunk's attention is the most that a single one of its tokens gets, mean over the heads of the layers
// that look up what was read (copy_layers.h), as a share of what those layers give to what they repeat. The
// sum over a chunk says nothing of where an answer comes from: most of it is spread thinly over whatever
// there is. docs/http-api.md has what that is worth on data.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/api/request.h"
#include "engine/api/request_trace.h"
#include "engine/model/scratch.h"
#include "engine/prompt/prompt_layout.h"
#include "engine/runtime/model_runtime.h"
#include "engine/serve/sequences/attribution/copy_layers.h"
#include "kernels/backend.h"

namespace kvblend {

/// For each token only so many chunks are reported, those that it attends to most; the others count as not
/// attended to.
inline constexpr size_t kMaxAttributedChunks = 4;

/// For the engine thread only. The runtime must outlive it.
class AnswerAttention {
 public:
  explicit AnswerAttention(ModelRuntime& runtime) : runtime_(runtime) {}

  /// Does a unit of work, a layer, towards knowing the layers. Returns whether they are known. `trace`, which
  /// may be null, is told of the work. Errors: CopyLayerSearch's.
  absl::StatusOr<bool> Prepare(RequestTrace* trace);
  /// Makes room for a pass of these rows. REQUIRES: Prepare has returned true
  absl::Status Begin(const kernels::BatchPlan& rows);
  /// Where the attention of the pass in that layer goes; nullopt: it is not measured there.
  std::optional<kernels::MatrixView> MassOf(int32_t layer) const;
  /// Copies it to the host, behind the pass. It is there once the stream is synchronized.
  absl::Status Fetch();
  /// What one row attends to, the most first, at most kMaxAttributedChunks chunks that get anything.
  /// `kv_offset`: the tokens of the sequences before that row's, each of which is one row; `chunks`: spans of
  /// its prompt, all below the row's kv_len.
  std::vector<ChunkAttention> Read(int64_t kv_offset, absl::Span<const prompt::Span> chunks) const;

 private:
  ModelRuntime& runtime_;
  CopyLayers found_;                         // no layers: not known yet
  std::unique_ptr<CopyLayerSearch> search_;  // in progress
  model::ScratchMatrix memory_;
  kernels::MatrixView mass_;    // of the pass: f32 [found_.layers.size(), its total_kv_len]
  std::vector<float> on_host_;  // the same
};

}  // namespace kvblend
