#include "engine/blend/costs/loading_controller.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace kvblend::blend {
namespace {

/// Predicts one prompt at different ratios.
class Predictor {
 public:
  Predictor(const BlendOptions& options, const LoadingCosts& costs, int32_t pipeline_depth)
      : options_(options), costs_(costs), pipeline_depth_(pipeline_depth) {}

  PrefillPrediction At(const PromptShape& shape, double ratio) const {
    BlendOptions options = options_;
    options.ratio = ratio;
    const auto policy = CreateSelectionPolicy(options, shape.num_layers);
    // Checked before anything is predicted; a policy that can't be made predicts nothing.
    return policy.ok() ? PredictPrefill(shape, **policy, costs_, pipeline_depth_) : PrefillPrediction{};
  }

 private:
  const BlendOptions& options_;
  const LoadingCosts& costs_;
  const int32_t pipeline_depth_;
};

void ComputeInstead(ShapeSpan& span) {
  span.use = ShapeSpan::Use::kComputed;
  span.tier = Tier::kNone;
  span.layer_bytes = 0;
}

/// The spans whose loading can be bypassed, by how much longer it takes than computing them.
std::vector<size_t> BypassOrder(const PromptShape& shape, const LoadingCosts& costs) {
  std::vector<std::pair<double, size_t>> order;
  for (size_t i = 0; i < shape.spans.size(); ++i) {
    const ShapeSpan& span = shape.spans[i];
    if (span.use == ShapeSpan::Use::kComputed || span.tier == Tier::kNone) continue;
    if (span.layer_bytes == 0) continue;  // all of it has arrived by now, and its tier may have no rate yet
    const store::ReadRate& rate = costs.reads.at(span.tier);
    // An old rate says little: the tier is read from, which measures it anew.
    if (!rate.recent) continue;
    const PassSize size = SizeOfRange(span.begin, span.end);
    const double compute =
        costs.forward.per_row * size.rows + costs.forward.per_visible_key * size.visible_keys;
    order.emplace_back(compute - static_cast<double>(span.layer_bytes) / rate.bytes_per_second, i);
  }
  std::sort(order.begin(), order.end());
  std::vector<size_t> spans;
  spans.reserve(order.size());
  for (const auto& [loss, i] : order) spans.push_back(i);
  return spans;
}

/// Bypasses in `shape` the spans that are better computed than loaded. Returns them, ascending.
std::vector<size_t> Bypass(PromptShape& shape, const LoadingCosts& costs, const Predictor& predictor,
                           double ratio) {
  const std::vector<size_t> order = BypassOrder(shape, costs);
  if (order.empty()) return {};
  const double loaded = predictor.At(shape, ratio).seconds;
  PromptShape tried = shape;
  double best = (1 - kBypassGain) * loaded;
  size_t best_count = 0;
  // One span alone may gain nothing where several together do, so every length is tried.
  for (size_t count = 1; count <= order.size(); ++count) {
    ComputeInstead(tried.spans[order[count - 1]]);
    const double seconds = predictor.At(tried, ratio).seconds;
    if (seconds < best) {
      best = seconds;
      best_count = count;
    }
  }
  std::vector<size_t> bypassed(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(best_count));
  std::sort(bypassed.begin(), bypassed.end());
  for (const size_t span : bypassed) ComputeInstead(shape.spans[span]);
  return bypassed;
}

double LargestHiddenRatio(const PromptShape& shape, const Predictor& predictor, const RatioOptions& ratio) {
  const double allowed = (1 + kHiddenTolerance) * predictor.At(shape, ratio.min).seconds;
  // From above: at ratios so large that everything is recomputed in one pass the prediction falls again.
  const int steps = static_cast<int>(std::floor((ratio.max - ratio.min) / kRatioStep + 1e-9));
  if (predictor.At(shape, ratio.max).seconds <= allowed) return ratio.max;
  for (int step = steps; step > 0; --step) {
    const double candidate = std::min(ratio.max, ratio.min + step * kRatioStep);
    if (predictor.At(shape, candidate).seconds <= allowed) return candidate;
  }
  return ratio.min;
}

}  // namespace

RatioOptions ResolveRatio(const BlendOptions& options, const RatioOptions& defaults) {
  RatioOptions ratio = defaults;
  if (options.ratio.has_value()) {
    ratio.mode = RatioMode::kFixed;
    ratio.ratio = *options.ratio;
  }
  if (options.ratio.has_value() || options.ratio_min.has_value() || options.ratio_max.has_value()) {
    ratio.min_tokens = 0;
  }
  if (options.ratio_mode.has_value()) ratio.mode = *options.ratio_mode;
  if (options.ratio_min.has_value()) ratio.min = *options.ratio_min;
  if (options.ratio_max.has_value()) ratio.max = *options.ratio_max;
  if (!options.ratio_max.has_value()) ratio.max = std::max(ratio.max, ratio.min);
  if (!options.ratio_min.has_value()) ratio.min = std::min(ratio.min, ratio.max);
  return ratio;
}

RatioOptions WithMinTokens(RatioOptions ratio, const PromptShape& shape) {
  int64_t candidates = 0;
  for (const ShapeSpan& span : shape.spans) {
    if (span.use == ShapeSpan::Use::kCandidate) candidates += span.num_tokens();
  }
  const bool none = ratio.mode == RatioMode::kFixed && ratio.ratio == 0;
  if (candidates == 0 || none) return ratio;
  const double share = std::min(1.0, static_cast<double>(ratio.min_tokens) / static_cast<double>(candidates));
  for (double* value : {&ratio.ratio, &ratio.min, &ratio.max}) *value = std::max(*value, share);
  return ratio;
}

LoadingDecision DecideLoading(const PromptShape& shape, const BlendOptions& options,
                              const RatioOptions& ratio, const std::optional<LoadingCosts>& costs,
                              int32_t pipeline_depth) {
  LoadingDecision decision;
  const bool is_auto = ratio.mode == RatioMode::kAuto;
  decision.ratio = is_auto ? std::clamp(ratio.ratio, ratio.min, ratio.max) : ratio.ratio;
  if (!costs.has_value()) return decision;
  for (const auto& [tier, bytes] : LayerBytesByTier(shape)) {
    if (!costs->reads.contains(tier)) return decision;
  }
  const Predictor predictor(options, *costs, pipeline_depth);
  PromptShape decided = shape;
  if (is_auto) {
    decision.bypassed = Bypass(decided, *costs, predictor, ratio.min);
    const bool has_candidates =
        std::any_of(decided.spans.begin(), decided.spans.end(),
                    [](const ShapeSpan& span) { return span.use == ShapeSpan::Use::kCandidate; });
    if (has_candidates && HasRatio(options.policy)) {
      // Of the candidates that are left, the least number of tokens is a larger share.
      decision.ratio = LargestHiddenRatio(decided, predictor, WithMinTokens(ratio, decided));
    }
  }
  decision.prediction = predictor.At(decided, decision.ratio);
  return decision;
}

void LoadingController::Observe(const PrefillMeasurements& measurements) {
  absl::MutexLock lock(&mutex_);
  for (const PassMeasurement& pass : measurements.passes) {
    if (pass.layers < 1) continue;
    PassCostFit& fit = pass.kind == PassMeasurement::Kind::kQuery ? query_ : forward_;
    fit.Add(pass.size, pass.seconds / pass.layers);
  }
  place_.Add(measurements.placed_token_layers, measurements.place_seconds);
  head_.Add(1, measurements.head_seconds);
}

std::optional<LoadingCosts> LoadingController::Costs(std::map<Tier, store::ReadRate> reads) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<PassCost> forward = forward_.Fit();
  if (!forward.has_value()) return std::nullopt;
  LoadingCosts costs{.forward = *forward, .query = *forward, .projection_share = projection_share_};
  if (const std::optional<PassCost> query = query_.Fit()) {
    costs.query = *query;
  } else {
    costs.query.per_visible_key *= 2;  // attention is computed, and measured
  }
  costs.place_seconds = place_.seconds_per_unit().value_or(0);
  costs.head_seconds = head_.seconds_per_unit().value_or(0);
  costs.reads = std::move(reads);
  return costs;
}

}  // namespace kvblend::blend
