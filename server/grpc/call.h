// What all calls have in common: parsing, refusing, logging, counting. For the services' sources only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/engine.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/convert/requests.h"
#include "server/grpc/byte_buffer.h"
#include "server/grpc/call_log.h"
#include "server/grpc/event_stream.h"
#include "server/grpc/services.h"
#include "server/grpc/status.h"

namespace kvblend::server {

using ByteWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

/// One server-streaming call as its observer sees it.
struct StreamCall {
  std::shared_ptr<EventStream> stream;
  std::shared_ptr<CallLog> log;
  Metrics* metrics = nullptr;
};

/// "ipv4:10.0.0.7:51234" -> "ipv4:10.0.0.7": connections of one client share their turns in the queue.
std::string PeerHost(const std::string& peer);

/// InfiniteFuture when the client set none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

/// The namespace's and client's place among those who take turns.
std::string FairnessKey(const std::string& tenant_namespace, const std::string& peer);

/// Adds the trailing metadata retry-after-ms.
void AddRetryHint(grpc::CallbackServerContext* context);

/// Parses a WireRequest, converts it and hands it to `submit(engine, request, call)`, which returns the
/// engine's StatusOr<shared_ptr<RequestHandle>> and has the engine feed and close call.stream, unless it
/// returns an error.
template <typename WireRequest, typename Submit>
ByteWriteReactor* ServeStream(const ServiceContext& services, grpc::CallbackServerContext* context,
                              const grpc::ByteBuffer* bytes, const char* service, const char* method,
                              Submit submit) {
  const std::string peer = context->peer();
  const absl::Time deadline = DeadlineOf(*context);
  StreamCall call;
  call.metrics = services.metrics;
  call.log = std::make_shared<CallLog>(services.metrics, service, method, peer);
  call.stream =
      std::make_shared<EventStream>(services.max_unsent_bytes, deadline,
                                    [log = call.log](const grpc::Status& status) { log->End(status); });
  ByteWriteReactor* reactor = EventStream::MakeReactor(call.stream);

  bool submitted = false;
  const auto handle = [&]() -> absl::StatusOr<std::shared_ptr<RequestHandle>> {
    absl::StatusOr<Engine*> engine = services.engine_slot->Get();
    if (!engine.ok()) return engine.status();
    WireRequest wire;
    if (absl::Status status = ParseByteBuffer(*bytes, &wire); !status.ok()) return status;
    auto request = FromProto(std::move(wire));
    if (!request.ok()) return request.status();
    request->caller.fairness_key = FairnessKey(request->caller.tenant_namespace, peer);
    request->caller.deadline = deadline;
    submitted = true;
    return submit(**engine, *std::move(request), call);
  }();
  if (handle.ok()) {
    call.stream->SetHandle(*handle);
  } else {
    if (submitted && absl::IsResourceExhausted(handle.status())) AddRetryHint(context);
    call.stream->Close(ToGrpcStatus(handle.status()));
  }
  return reactor;
}

/// Parses a WireRequest and answers with the message that `answer(engine, wire)` returns in a StatusOr.
template <typename WireRequest, typename Answer>
grpc::ServerUnaryReactor* ServeUnary(const ServiceContext& services, grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* bytes, grpc::ByteBuffer* response,
                                     const char* service, const char* method, Answer answer) {
  CallLog log(services.metrics, service, method, context->peer());
  const absl::Status status = [&]() -> absl::Status {
    absl::StatusOr<Engine*> engine = services.engine_slot->Get();
    if (!engine.ok()) return engine.status();
    WireRequest wire;
    if (absl::Status parsed = ParseByteBuffer(*bytes, &wire); !parsed.ok()) return parsed;
    const auto message = answer(**engine, wire);
    if (!message.ok()) return message.status();
    *response = ToByteBuffer(*message);
    return absl::OkStatus();
  }();
  const grpc::Status grpc_status = ToGrpcStatus(status);
  log.End(grpc_status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc_status);
  return reactor;
}

}  // namespace kvblend::server
