// The check that an engine makes of itself before it serves.
#pragma once

#include "absl/status/statusor.h"
#include "engine/runtime/model_runtime.h"

namespace kvblend {

/// Blends a short prompt of made-up tokens in two ways that must give full prefill's logits: every reused
/// token recomputed (ratio 1), and an exact prefix reused with nothing recomputed. Catches wrong position
/// handling, RoPE variants, masks and KV layouts of a backend, model or format before any client sees their
/// output. Returns the largest difference of logits found, relative to their norm; kFailedPrecondition,
/// naming it and the limit, when it is more than rounding explains.
absl::StatusOr<double> RunSelfCheck(ModelRuntime& runtime);

}  // namespace kvblend
