// The gRPC services, as the server assembles them. No gRPC header here: they compile slowly.
#pragma once

#include <memory>
#include <vector>

#include "server/calls/access.h"
#include "server/calls/calls.h"
#include "server/files/trusted_proxies.h"
#include "server/grpc/call_threads.h"
#include "server/grpc/open_streams.h"
#include "server/metrics/metrics.h"
#include "server/trace/tracer.h"

namespace grpc {
class Service;
}

namespace kvblend::server {

/// What the services work with; all of it must outlive them, and `metrics` and `tracer` the engine as well.
struct ServiceContext {
  Calls* calls = nullptr;
  Access* access = nullptr;  // null: whoever calls may make all of them
  Metrics* metrics = nullptr;
  Tracer* tracer = nullptr;  // null: no timelines are kept
  TrustedProxies trusted_proxies;
};

/// Inference, Chunks and Admin of kvblend.v1. `threads` must outlive them, and be stopped before they are
/// destroyed.
std::vector<std::shared_ptr<grpc::Service>> MakeServices(const ServiceContext& context,
                                                         ServerThreads* threads,
                                                         const std::shared_ptr<OpenStreams>& streams);

}  // namespace kvblend::server
