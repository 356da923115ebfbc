// The calls over an engine that lives as long as they do.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/calls/calls.h"
#include "server/cli/cancellation.h"

namespace kvblend::server::cli {

/// Loads the model; takes seconds, of which `on_load` is told (engine/api/engine.h). `cancellation` must
/// outlive the calls: at their end, what answers left to be stored is finished unless it was requested.
absl::StatusOr<std::shared_ptr<Calls>> MakeInProcessCalls(const EngineOptions& options,
                                                          const Cancellation& cancellation,
                                                          const Engine::LoadObserver& on_load = nullptr);

}  // namespace kvblend::server::cli
