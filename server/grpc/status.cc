#include "server/grpc/status.h"

#include "absl/strings/str_cat.h"

namespace kvblend::server {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

std::string CodeName(grpc::StatusCode code) {
  // Abseil took its codes and their names from gRPC.
  if (code < grpc::StatusCode::OK || code > grpc::StatusCode::UNAUTHENTICATED) {
    return absl::StrCat("CODE_", static_cast<int>(code));
  }
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

}  // namespace kvblend::server
