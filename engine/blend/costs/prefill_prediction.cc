#include "engine/blend/costs/prefill_prediction.h"

#include "engine/blend/prefill_route.h"

namespace kvblend::blend {
namespace {

PassSize operator+(const PassSize& a, const PassSize& b) {
  return {a.rows + b.rows, a.visible_keys + b.visible_keys};
}

PassSize operator*(double factor, const PassSize& size) {
  return {factor * size.rows, factor * size.visible_keys};
}

/// The tokens of a prompt by what becomes of them.
struct Totals {
  PassSize computed;
  PassSize candidates;
  int32_t exact_tokens = 0;
  int32_t candidate_tokens = 0;
};

Totals TotalsOf(const PromptShape& shape, Candidates& candidates) {
  Totals totals;
  for (const ShapeSpan& span : shape.spans) {
    switch (span.use) {
      case ShapeSpan::Use::kComputed:
        totals.computed = totals.computed + SizeOfRange(span.begin, span.end);
        break;
      case ShapeSpan::Use::kExact:
        totals.exact_tokens += span.num_tokens();
        break;
      case ShapeSpan::Use::kCandidate:
        totals.candidates = totals.candidates + SizeOfRange(span.begin, span.end);
        candidates.spans.push_back({0, span.begin, span.end});
        break;
    }
  }
  totals.candidate_tokens = static_cast<int32_t>(totals.candidates.rows);
  candidates.num_tokens = totals.candidate_tokens;
  return totals;
}

}  // namespace

PassSize SizeOfRange(int32_t begin, int32_t end) {
  const double n = end - begin;
  return {n, n * (static_cast<double>(begin) + end + 1) / 2};  // the sum of position + 1
}

double SecondsPerToken(const PassCost& cost, const PromptShape& shape) {
  const double visible_keys = shape.spans.empty() ? 0 : shape.spans.back().end / 2.0;
  return shape.num_layers * (cost.per_row + cost.per_visible_key * visible_keys);
}

std::map<Tier, int64_t> LayerBytesByTier(const PromptShape& shape) {
  std::map<Tier, int64_t> bytes;
  for (const ShapeSpan& span : shape.spans) {
    if (span.tier != Tier::kNone && span.layer_bytes > 0) bytes[span.tier] += span.layer_bytes;
  }
  return bytes;
}

namespace {

Timeline MakeTimeline(const PromptShape& shape, const SelectionPolicy& policy, const LoadingCosts& costs,
                      int32_t pipeline_depth) {
  Timeline timeline{.num_layers = shape.num_layers, .depth = pipeline_depth};
  for (const auto& [tier, bytes] : LayerBytesByTier(shape)) {
    timeline.read_seconds_per_layer.push_back(static_cast<double>(bytes) /
                                              costs.reads.at(tier).bytes_per_second);
  }
  Candidates candidates;
  const Totals totals = TotalsOf(shape, candidates);
  const int32_t budget = policy.Budget(candidates);
  const Requirement requirement = policy.requirement();
  const PrefillRoute route = ChooseRoute(static_cast<int64_t>(totals.computed.rows) + shape.shared_computed,
                                         candidates.num_tokens, requirement, budget);
  const double chosen_share = route == PrefillRoute::kAll || candidates.num_tokens == 0
                                  ? 1.0
                                  : static_cast<double>(budget) / candidates.num_tokens;
  const double place_exact = costs.place_seconds * totals.exact_tokens;
  const double place_all = costs.place_seconds * (totals.exact_tokens + totals.candidate_tokens);
  const PassSize active = totals.computed + chosen_share * totals.candidates;
  const PassSize inexact = totals.computed + totals.candidates;
  const double active_seconds = costs.forward.LayerSeconds(active);
  const int32_t num_layers = shape.num_layers;
  std::vector<TimelineStep>& steps = timeline.steps;
  switch (route) {
    case PrefillRoute::kOnePass:
    case PrefillRoute::kAll:
      for (int32_t layer = 0; layer < num_layers; ++layer) {
        steps.push_back({layer, true, place_all, active_seconds});
      }
      break;
    case PrefillRoute::kQueryPass:
      for (int32_t layer = 0; layer < requirement.layers; ++layer) {
        steps.push_back({layer, true, place_all, costs.query.LayerSeconds(totals.computed)});
      }
      for (int32_t layer = 0; layer < num_layers; ++layer) {
        steps.push_back({layer, layer >= requirement.layers, place_all, active_seconds});
      }
      break;
    case PrefillRoute::kDeviation:
      for (int32_t layer = 0; layer < num_layers; ++layer) {
        if (layer < requirement.layers) {
          steps.push_back({layer, true, place_exact, costs.forward.LayerSeconds(inexact)});
        } else if (layer == requirement.layers) {
          // Everything is projected; only what was chosen goes on.
          const double projections =
              costs.projection_share * costs.forward.per_row * (inexact.rows - active.rows);
          steps.push_back({layer, true, place_exact, active_seconds + projections});
        } else {
          steps.push_back({layer, true, place_all, active_seconds});
        }
      }
      break;
  }
  return timeline;
}

}  // namespace

PrefillPrediction PredictPrefill(const PromptShape& shape, const SelectionPolicy& policy,
                                 const LoadingCosts& costs, int32_t pipeline_depth) {
  const Timeline timeline = MakeTimeline(shape, policy, costs, pipeline_depth);
  const TimelineResult run = Simulate(timeline);
  PrefillPrediction prediction{.seconds = run.seconds + costs.head_seconds,
                               .stall_seconds = run.stall_seconds};
  for (const TimelineStep& step : timeline.steps) prediction.compute_seconds += step.compute_seconds;
  prediction.compute_seconds += costs.head_seconds;

  Timeline load{.num_layers = timeline.num_layers,
                .depth = timeline.depth,
                .read_seconds_per_layer = timeline.read_seconds_per_layer};
  double tokens = 0;
  for (const ShapeSpan& span : shape.spans) {
    if (span.use != ShapeSpan::Use::kComputed) tokens += span.num_tokens();
  }
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    load.steps.push_back({layer, true, tokens * costs.place_seconds, 0});
  }
  prediction.load_seconds = Simulate(load).seconds;
  return prediction;
}

}  // namespace kvblend::blend
