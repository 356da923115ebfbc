// The gRPC listener: the three kvblend.v1 services, grpc.health.v1 and server reflection.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/grpc/connection_limits.h"
#include "server/grpc/services.h"
#include "server/tls/server_tls.h"

namespace kvblend::server {

struct GrpcServerOptions {
  std::string address = "127.0.0.1:50051";        // "HOST:PORT" (port 0: any free one) or "unix:PATH"
  int64_t max_message_bytes = int64_t{16} << 20;  // of one request; 1 to 2^31 - 1
  GrpcConnectionLimits limits;
  TlsFiles tls;  // not enabled: plain text; read again when they change
};

/// Thread-safe.
class GrpcServer {
 public:
  /// Listens at once; health says NOT_SERVING until SetServing(true).
  /// kUnavailable: the address can't be bound. kInvalidArgument: TLS files.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const GrpcServerOptions& options,
                                                           const ServiceContext& context);
  /// Cancels what is still running.
  virtual ~GrpcServer() = default;

  /// The port bound; 0 for a unix socket.
  virtual int port() const = 0;

  /// What grpc.health.v1 answers for "" and for every service.
  virtual void SetServing(bool serving) = 0;

  /// Accepts nothing more, waits for running calls until `deadline`, then cancels them and waits for their
  /// end.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace kvblend::server
