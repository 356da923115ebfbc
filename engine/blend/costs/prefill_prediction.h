// How long a prompt's prefill will take, from its shape, a policy and what things cost. Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/api/tier.h"
#include "engine/blend/costs/load_timeline.h"
#include "engine/blend/costs/pass_cost.h"
#include "engine/blend/selection_policy.h"
#include "engine/store/read_meter.h"

namespace kvblend::blend {

/// A run of prompt tokens and what becomes of it.
struct ShapeSpan {
  enum class Use : uint8_t { kComputed, kExact, kCandidate };
  Use use = Use::kComputed;
  int32_t begin = 0;  // prompt positions [begin, end)
  int32_t end = 0;
  Tier tier = Tier::kNone;  // where its stored KV is read from; kNone when it is in host memory, or computed
  int64_t layer_bytes = 0;  // to be read from there for one layer

  int32_t num_tokens() const { return end - begin; }
};

/// What a prediction needs to know of a prompt.
struct PromptShape {
  int32_t num_layers = 0;
  std::vector<ShapeSpan> spans = {};  // in prompt order, covering the prompt, but for what is kept of it
  int32_t shared_computed = 0;        // see ReusePlan
};

/// What things cost on this machine; see LoadingController for where it comes from.
struct LoadingCosts {
  PassCost forward = {};          // passes that compute tokens
  PassCost query = {};            // query passes, the measuring of attention included
  double place_seconds = 0;       // per token and layer: dequantize, rotate, scatter
  double head_seconds = 0;        // after the last layer: the first token's logits
  double projection_share = 0.2;  // of a layer's matrix products: Q, K and V
  std::map<Tier, store::ReadRate> reads = {};
};

struct PrefillPrediction {
  double seconds = 0;          // from the first read to the first token's logits
  double stall_seconds = 0;    // the part of it spent waiting for layers
  double load_seconds = 0;     // T_load: reading and placing all stored KV with nothing computed beside it
  double compute_seconds = 0;  // T_compute: the passes with all stored KV in place
};

/// Plays the passes of a prefill that `policy` would run on `shape`, and the reads beside them. Chosen tokens
/// are taken to lie evenly among the candidates. REQUIRES: costs.reads has every tier of the shape.
PrefillPrediction PredictPrefill(const PromptShape& shape, const SelectionPolicy& policy,
                                 const LoadingCosts& costs, int32_t pipeline_depth);

/// The prompt's bytes per layer by the tier that they are read from.
std::map<Tier, int64_t> LayerBytesByTier(const PromptShape& shape);

/// What one more computed token in the middle of this prompt costs, through all layers.
double SecondsPerToken(const PassCost& cost, const PromptShape& shape);

/// What a pass over the tokens [begin, end) of a prompt computes.
PassSize SizeOfRange(int32_t begin, int32_t end);

}  // namespace kvblend::blend
