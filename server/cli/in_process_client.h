// An EngineClient that owns its engine.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/api/engine.h"
#include "server/cli/cancellation.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

/// Loads the model; takes seconds. `cancellation` must outlive the client.
absl::StatusOr<std::unique_ptr<EngineClient>> CreateInProcessClient(const EngineOptions& options,
                                                                    Cancellation& cancellation);

/// The same over an engine that is there already.
std::unique_ptr<EngineClient> CreateInProcessClient(std::unique_ptr<Engine> engine,
                                                    Cancellation& cancellation);

}  // namespace kvblend::server::cli
