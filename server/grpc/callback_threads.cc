#include "server/grpc/callback_threads.h"

#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace kvblend::server {

void KeepCallbackThreads() {
  // A server that listens nowhere and is never destroyed: one user more that the threads always have.
  static const grpc::Server* const user = [] {
    auto* service = new grpc::CallbackGenericService;
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(service);
    return builder.BuildAndStart().release();
  }();
  static_cast<void>(user);
}

}  // namespace kvblend::server
