// The life of the server: listen, load, serve, drain, stop.
//
// It listens before the model is loaded, so that a taken port is noticed at once; requests are refused
// meanwhile.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "engine/api/engine.h"
#include "server/config/server_config.h"

namespace kvblend::server {

using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(const EngineOptions&)>;

/// Returns the process's exit code (see kvblend-server --help) some time after `stop` was notified, or at
/// once when it can't start; then one line on stderr says why.
int RunServer(const ServerConfig& config, const EngineFactory& create_engine, const absl::Notification& stop);

}  // namespace kvblend::server
