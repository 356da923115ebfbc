// When the layers of a prompt are there and when they are computed: a small simulation, free of clocks and
// measurements.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace kvblend::blend {

/// What the computing thread does in one layer of one pass, in this order: wait for the layer's stored KV,
/// place it, compute.
struct TimelineStep {
  int32_t layer = 0;
  bool loads = false;        // waits for the layer
  double place_seconds = 0;  // dequantize, rotate, scatter; only when it loads
  double compute_seconds = 0;
};

struct Timeline {
  int32_t num_layers = 0;
  /// While layer l is computed, layers up to l + depth are asked for; 0: all from the beginning.
  int32_t depth = 0;
  /// For every tier that is read from, the time to read one layer of all its chunks. The tiers read at the
  /// same time, each one layer after another.
  std::vector<double> read_seconds_per_layer = {};
  std::vector<TimelineStep> steps = {};  // one after the other
};

struct TimelineResult {
  double seconds = 0;        // until the last step has ended
  double stall_seconds = 0;  // the part of it spent waiting for layers
};

/// Layer k of a tier is there at
///     arrival(k) = max(arrival(k - 1), time at which k was asked for) + read_seconds_per_layer
/// and a step that loads begins to place at max(end of the step before, arrival over all tiers).
/// Layers 0 to depth are asked for at time 0, layer l + depth when a step begins to wait for layer l.
/// REQUIRES: layers of steps are in [0, num_layers); steps that load have ascending layers.
TimelineResult Simulate(const Timeline& timeline);

}  // namespace kvblend::blend
