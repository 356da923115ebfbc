// Measures at the start what computing costs with this machine and model, so that the loading controller has
// figures before any prompt has run.
#pragma once

#include "absl/status/statusor.h"
#include "engine/blend/costs/loading_controller.h"
#include "engine/runtime/model_runtime.h"

namespace kvblend {

/// Runs a few layers over made-up tokens: forward passes and query passes of different sizes, and the placing
/// of a chunk. Takes as long as some tens of tokens of full prefill. Uses free pages, and gives them back.
absl::StatusOr<blend::PrefillMeasurements> MeasureCosts(ModelRuntime& runtime);

}  // namespace kvblend
