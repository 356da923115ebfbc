#include "server/grpc/status.h"

#include <optional>
#include <string>

#include "base/retry_delay.h"
#include "server/grpc/retry_info.h"

namespace kvblend::server {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::optional<absl::Duration> delay = RetryDelayOf(status);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      delay ? SerializedRetryStatus(status, *delay) : "");
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace kvblend::server
