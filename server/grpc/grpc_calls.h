// The calls as a server at some address answers them.
#pragma once

#include <memory>
#include <string>

#include "server/calls/calls.h"

namespace kvblend::server {

/// `address` is "host:port" or what else gRPC resolves. Connects at the first call. CallerContext::client is
/// not used: the server tells clients apart by itself. Errors carry the server's code and message;
/// streams' with when to
/// try again, where it says so (base/retry_delay.h); kUnavailable, naming the address, when it can't be reached. `api_key` is shown with every call; empty: none is.
std::shared_ptr<Calls> MakeGrpcCalls(const std::string& address, const std::string& api_key = "");

}  // namespace kvblend::server
