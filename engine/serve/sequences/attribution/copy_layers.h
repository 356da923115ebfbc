// In which layers a model looks up what it has read before.
//
// A model that repeats a text attends, in a few heads, from each token to the one that followed it the last
// time (induction heads: Olsson et al., "In-context Learning and Induction Heads", 2022). The same heads
// point at the passage that an answer is taken from. Where they are differs from model to model, so it is
// measured: random tokens that come twice, which no model knows by heart, and how much each layer attends,
// the second time, to the token that came next the first time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv/page_pool.h"
#include "engine/model/scratch.h"
#include "engine/model/transformer.h"
#include "engine/runtime/model_runtime.h"
#include "kernels/backend.h"

namespace kvblend {

struct CopyLayers {
  std::vector<int32_t> layers;  // ascending; at least one
  /// What one token gets of the attention of the token that repeats it, mean over heads, these layers and the
  /// tokens: in (0, 1].
  float strength = 0;
};

/// At most this many layers are taken, all of which point at least half as much as the best one.
inline constexpr int kMaxCopyLayers = 2;

/// One pass of at most 129 tokens through all layers, over pages of its own. Layers with sliding windows
/// count only where there are no others, since they do not see passages far away. On the thread of the
/// runtime's stream; the runtime must outlive it.
class CopyLayerSearch {
 public:
  /// Errors: the backend's; kFailedPrecondition: the context is too short for two tokens that come twice.
  static absl::StatusOr<std::unique_ptr<CopyLayerSearch>> Create(ModelRuntime& runtime);

  /// Carries the pass through one more layer. Returns whether that was the last one. Errors: the backend's.
  absl::StatusOr<bool> Step();
  /// REQUIRES: Step has returned true
  CopyLayers Found() const;

 private:
  explicit CopyLayerSearch(ModelRuntime& runtime) : runtime_(runtime) {}

  ModelRuntime& runtime_;
  int32_t count_ = 0;  // of the tokens that come twice
  std::unique_ptr<kv::PagePool>
      pool_;  // the KV of a layer is needed in that layer only, so one layer's pages do for all
  std::unique_ptr<kernels::BatchPlan> rows_;
  model::PassState state_;
  model::ScratchMatrix memory_;
  kernels::MatrixView mass_;
  std::vector<float> measured_;   // the layer's mass, on the host
  std::vector<float> strengths_;  // of the layers so far
};

}  // namespace kvblend
