// What stands before a chunk in a prompt moves the chunk's K and V largely in a way that does not depend on the text:
// a map per layer, fitted on other prompts, from a token's stored K (before RoPE) and V to those that full prefill
// would give, takes away more than half of what plain reuse costs (docs/algorithm.md, "Learned corrections"). Its formula
// is kernels/kv_correction.h's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/chunk_key.h"
#include "engine/api/request.h"
#include "kernels/backend.h"

namespace kvblend::kv {

/// One layer's. All empty: the layer stays as it is stored, as the first one does, whose K and V know nothing of other
/// tokens. With channels = 2 * num_kv_heads * head_dim, K's and then V's:
struct LayerCorrection {
  std::vector<float> scale;   // [channels]
  std::vector<float> offset;  // [kNumKvCorrectionPlaces, channels]
  std::vector<float> down;    // [channels, rank]
  std::vector<float> up;      // [rank, channels]

  bool empty() const { return scale.empty(); }
};

/// How many of a layer's `rank` directions are used: all up to the last one that is not zero.
int64_t UsedRank(const LayerCorrection& layer, int64_t rank);

/// What a correction was fitted on and what it is worth, for people.
struct CorrectionOrigin {
  std::string data;  // at most kMaxBytes
  int64_t tokens = 0;
  double kl_before = 0;  // nats per token from full prefill with nothing recomputed, on prompts kept back
  double kl_after = 0;

  static constexpr size_t kMaxBytes = 256;
};

/// Plain data.
struct LearnedCorrection {
  Digest model_fingerprint{};
  Anchoring anchoring = Anchoring::kAnchored;  // how the chunks were computed that it corrects
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rank = 0;
  std::vector<LayerCorrection> layers = {};
  CorrectionOrigin origin = {};

  int64_t channels() const { return int64_t{2} * num_kv_heads * head_dim; }
};

/// A correction in a backend's memory. Immutable; must not outlive the backend.
struct LoadedCorrection {
  static absl::StatusOr<std::unique_ptr<LoadedCorrection>> Load(const LearnedCorrection& correction,
                                                                std::string version,
                                                                kernels::Backend& backend);

  std::string version;  // of the file: changes with every bit
  Anchoring anchoring = Anchoring::kAnchored;
  std::vector<std::unique_ptr<kernels::KvCorrection>> layers;  // null: the layer stays as it is stored
};

}  // namespace kvblend::kv
