// The gRPC services, as the server assembles them. No gRPC header here: they compile slowly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "server/grpc/engine_slot.h"
#include "server/metrics/metrics.h"

namespace grpc {
class Service;
}

namespace kvblend::server {

/// What the services work with; all of it must outlive them, and `metrics` the engine as well.
struct ServiceContext {
  EngineSlot* engine_slot = nullptr;
  Metrics* metrics = nullptr;
  EngineOptions engine_options;         // for Admin.GetInfo's limits
  int64_t max_message_bytes = 0;        // likewise
  size_t max_unsent_bytes = 256 << 20;  // of one stream; see EventStream
  absl::Time started;
};

std::shared_ptr<grpc::Service> MakeInferenceService(const ServiceContext& context);
std::shared_ptr<grpc::Service> MakeChunksService(const ServiceContext& context);
std::shared_ptr<grpc::Service> MakeAdminService(const ServiceContext& context);

}  // namespace kvblend::server
