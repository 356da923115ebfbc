// An EngineClient that talks to a kvblend-server.
#pragma once

#include <memory>
#include <string>

#include "server/cli/cancellation.h"
#include "server/cli/client.h"

namespace kvblend::server::cli {

/// `address` is "host:port" or what else gRPC resolves. Connects at the first call. `cancellation` must
/// outlive the client.
std::unique_ptr<EngineClient> CreateGrpcClient(const std::string& address, Cancellation& cancellation);

}  // namespace kvblend::server::cli
