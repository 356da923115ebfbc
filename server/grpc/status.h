// Statuses: from Abseil's to gRPC's. The codes are the same; messages go to the client as they are.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace kvblend::server {

grpc::Status ToGrpcStatus(const absl::Status& status);

/// "INVALID_ARGUMENT"; "CODE_99" for a number that gRPC does not define.
std::string CodeName(grpc::StatusCode code);

}  // namespace kvblend::server
