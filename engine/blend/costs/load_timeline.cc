#include "engine/blend/costs/load_timeline.h"

#include <algorithm>

namespace kvblend::blend {

TimelineResult Simulate(const Timeline& timeline) {
  const int32_t depth = timeline.depth == 0 ? timeline.num_layers : timeline.depth;
  std::vector<double> tier_free(timeline.read_seconds_per_layer.size(), 0.0);
  std::vector<double> arrival(timeline.num_layers, 0.0);
  int32_t asked = 0;  // layers before it are asked for
  const auto ask_up_to = [&](int32_t layer, double now) {
    for (; asked <= std::min(layer, timeline.num_layers - 1); ++asked) {
      for (size_t tier = 0; tier < tier_free.size(); ++tier) {
        tier_free[tier] = std::max(tier_free[tier], now) + timeline.read_seconds_per_layer[tier];
        arrival[asked] = std::max(arrival[asked], tier_free[tier]);
      }
    }
  };
  ask_up_to(depth, 0);
  TimelineResult result;
  for (const TimelineStep& step : timeline.steps) {
    if (step.loads) {
      ask_up_to(step.layer + depth, result.seconds);
      const double stall = std::max(0.0, arrival[step.layer] - result.seconds);
      result.stall_seconds += stall;
      result.seconds += stall + step.place_seconds;
    }
    result.seconds += step.compute_seconds;
  }
  return result;
}

}  // namespace kvblend::blend
