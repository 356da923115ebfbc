// The life of the server: listen, load, serve, drain, stop.
//
// It listens before the model is loaded, so that a port in use is noticed at once; until then requests are
// refused.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "engine/api/engine.h"
#include "server/config/server_config.h"

namespace kvblend::server {

using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(const EngineOptions&)>;

/// Serves until `stop` is notified, then drains and stops. Returns the exit code of the process (see
/// kvblend-server --help). If it cannot start, it returns at once, and a line on stderr says why.
int RunServer(const ServerConfig& config, const EngineFactory& create_engine, const absl::Notification& stop);

}  // namespace kvblend::server
