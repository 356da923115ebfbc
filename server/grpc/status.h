// Statuses of Abseil and of gRPC. The codes are the same by design; messages stay as they are.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace kvblend::server {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace kvblend::server
