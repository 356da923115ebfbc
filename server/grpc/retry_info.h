// Errors that say when to try again, as gRPC clients know them: google.rpc.Status with a google.rpc.RetryInfo
// among its details. C++ code for these messages is not packaged, so what little of them is needed is written
// byte by byte.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace kvblend::server {

/// A serialized google.rpc.Status of this code and message, for the trailer grpc-status-details-bin. `delay`
/// >= 0.
std::string SerializedRetryStatus(const absl::Status& status, absl::Duration delay);

}  // namespace kvblend::server
