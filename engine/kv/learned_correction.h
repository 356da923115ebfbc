// The learned correction of stored KV. Coming after other chunks changes a chunk's K and V, largely in a way
// that does not depend on the text. A map per layer, fitted on other prompts, from a token's stored K (before
// RoPE) and V to those of full prefill removes more than half of the divergence of plain reuse
// (docs/algorithm.md, "Learned corrections"). The formula is in kernels/kv_correction.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/chunk_key.h"
#include "engine/api/request.h"
#include "kernels/backend.h"

namespace kvblend::kv {

/// The correction of one layer. All empty: the layer is left as it is stored, as the first one always is,
/// whose K and V do not depend on other tokens. With channels = 2 * num_kv_heads * head_dim, K's and then
/// V's:
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
  double kl_before = 0;  // KL from full prefill, nats per token, with nothing recomputed, on prompts held out
  double kl_after = 0;

  static constexpr size_t kMaxBytes = 256;
};

/// What else there is to know of a correction that a server learned from stored KV.
struct LearnedFrom {
  uint32_t encoding = 0;  // kernels::KvEncoding of that KV: its rounding was learned too
  std::string base = {};  // version of the correction that learning began with; empty: none

  static constexpr size_t kBaseBytes = 16;
};

/// Plain data.
struct LearnedCorrection {
  Digest model_fingerprint{};
  Anchoring anchoring = Anchoring::kAnchored;  // of the chunks that it corrects
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rank = 0;
  std::vector<LayerCorrection> layers = {};
  CorrectionOrigin origin = {};
  std::optional<LearnedFrom> learned = std::nullopt;  // nothing: `kvblend calibrate` fitted it

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
