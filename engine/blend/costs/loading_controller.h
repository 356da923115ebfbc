// The loading controller: learns what loading and computing cost, and decides how much to recompute and what
// not to load at all.
//
// Loading hides computing, or computing hides loading, whichever is slower. With `auto` a prompt recomputes
// as many tokens as its loading hides: the largest ratio within bounds at which the predicted time to the
// first token is still that of the smallest. And what takes longer to load than to compute is computed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/request.h"
#include "engine/blend/costs/pass_cost.h"
#include "engine/blend/costs/prefill_prediction.h"
#include "engine/blend/selection_policy.h"
#include "engine/store/measured_rate.h"
#include "engine/store/read_meter.h"

namespace kvblend::blend {

/// What a request asks for, over what the engine is set to. Where a request gives one bound and the engine's
/// other one contradicts it, the request's holds for both. Where a request gives a share, min_tokens is 0.
RatioOptions ResolveRatio(const BlendOptions& options, const RatioOptions& defaults);

/// `ratio` (resolved) with its shares raised to what comes to ratio.min_tokens of the prompt's candidates, or
/// to 1 where these are fewer. Not where it is kFixed at 0, which asks for plain reuse.
RatioOptions WithMinTokens(RatioOptions ratio, const PromptShape& shape);

struct LoadingDecision {
  double ratio = 0;                             // for the policy
  std::vector<size_t> bypassed;                 // indices into the shape's spans, ascending: to be computed
  std::optional<PrefillPrediction> prediction;  // of what was decided; nullopt: too little is measured
};

/// Predictions within this share of each other count as equal.
inline constexpr double kHiddenTolerance = 0.02;
/// A bypass must win at least this share of the predicted time.
inline constexpr double kBypassGain = 0.05;

/// Chooses by `ratio` (resolved) for a prompt of `shape`. Pure.
///
/// kFixed: ratio.ratio, nothing bypassed.
/// kAuto: first, at ratio.min, spans are bypassed that would be read from a tier below host memory whose rate
/// was measured lately: as many as give the whole prompt the shortest predicted time, beginning with those
/// that lose most by being loaded. Then the largest ratio in [min, max], on a grid of kRatioStep, at which
/// the prediction is at most (1 + kHiddenTolerance) times that at min.
/// Without `costs`, or with a tier that was never measured, nothing can be predicted: then the ratio is
/// ratio.ratio, kept within the bounds, and nothing is bypassed. `options`: valid; its ratio fields are not
/// looked at.
LoadingDecision DecideLoading(const PromptShape& shape, const BlendOptions& options,
                              const RatioOptions& ratio, const std::optional<LoadingCosts>& costs,
                              int32_t pipeline_depth);
inline constexpr double kRatioStep = 0.01;

/// One pass that ran.
struct PassMeasurement {
  enum class Kind : uint8_t { kForward, kQuery };
  Kind kind = Kind::kForward;
  PassSize size = {};
  int32_t layers = 0;
  double seconds = 0;  // without loading
};

/// What a prefill tells the controller about itself.
struct PrefillMeasurements {
  std::vector<PassMeasurement> passes = {};
  double placed_token_layers = 0;
  double place_seconds = 0;
  double head_seconds = 0;
};

/// Keeps the measurements of computing and placing; those of reading are the chunk store's
/// (store::ReadMeter). Thread-safe.
class LoadingController {
 public:
  /// `projection_share`: see LoadingCosts.
  explicit LoadingController(double projection_share) : projection_share_(projection_share) {}

  void Observe(const PrefillMeasurements& measurements);

  /// nullopt until a pass has been measured.
  std::optional<LoadingCosts> Costs(std::map<Tier, store::ReadRate> reads) const;

 private:
  const double projection_share_;
  mutable absl::Mutex mutex_;
  PassCostFit forward_ ABSL_GUARDED_BY(mutex_);
  PassCostFit query_ ABSL_GUARDED_BY(mutex_);
  store::MeasuredRate place_ ABSL_GUARDED_BY(mutex_);
  store::MeasuredRate head_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::blend
