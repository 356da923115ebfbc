// Statuses of Abseil and of gRPC. The codes are the same by design; messages stay as they are. An error
// that says when to try again (base/retry_delay.h) says so in its details (retry_info.h).
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace kvblend::server {

grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace kvblend::server
