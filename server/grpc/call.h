// What all calls have in common: parsing, refusing, logging, counting. For the services' sources only.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/calls/call_log.h"
#include "server/calls/calls.h"
#include "server/calls/long_calls.h"
#include "server/grpc/byte_buffer.h"
#include "server/grpc/call_threads.h"
#include "server/grpc/event_stream.h"
#include "server/grpc/services.h"
#include "server/grpc/status.h"

namespace kvblend::server {

using ByteWriteReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

/// "ipv4:10.0.0.7:51234" -> "ipv4:10.0.0.7": connections of one client share their turns in the queue.
std::string PeerHost(const std::string& peer);

/// Whom a call comes from, as context.peer() writes it; without a port where a trusted proxy forwards it.
std::string PeerOf(const grpc::CallbackServerContext& context, const TrustedProxies& proxies);

/// InfiniteFuture when the client set none.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

/// The metadata "authorization", or empty. kInvalidArgument where there are several: one of them would be
/// taken by chance.
absl::StatusOr<std::string> AuthorizationOf(const grpc::CallbackServerContext& context);

/// What a call that comes with this metadata belongs to; told in the trailing metadata traceresponse.
TraceContext TraceOf(const Tracer* tracer, grpc::CallbackServerContext* context);

/// The client's own name for the call, from the metadata x-request-id.
CallLog::RequestIds RequestIdsOf(const grpc::CallbackServerContext& context);

/// Adds the trailing metadata retry-after-ms: as the error says, or a second.
void AddRetryHint(const absl::Status& status, grpc::CallbackServerContext* context);

/// Sends what comes as a stream, and logs it.
template <typename Event>
class StreamSink : public EventSink<Event> {
 public:
  StreamSink(std::shared_ptr<EventStream> stream, std::shared_ptr<CallLog> log)
      : stream_(std::move(stream)), log_(std::move(log)) {}

  void OnEvent(const Event& event) override {
    log_->Note(event);
    stream_->Push(ToByteBuffer(event));
  }
  void OnDone(const absl::Status& status) override { stream_->Close(status); }
  void KeepUntilSent(std::shared_ptr<void> kept) override { stream_->KeepUntilSent(std::move(kept)); }

 private:
  const std::shared_ptr<EventStream> stream_;
  const std::shared_ptr<CallLog> log_;
};

/// The way of one service's calls from gRPC to Calls and back: admitted in gRPC's thread, the rest in one of
/// `threads`. Stateless, thread-safe.
class CallHandler {
 public:
  /// `threads` and `service` must outlive this object.
  CallHandler(const ServiceContext& services, ServerThreads* threads, std::shared_ptr<OpenStreams> streams,
              const char* service)
      : services_(services), threads_(*threads), streams_(std::move(streams)), service_(service) {}

  template <typename Request, typename Event>
  ByteWriteReactor* Stream(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                           const char* method,
                           Calls::Started (Calls::*call)(Request, const CallerContext&,
                                                         std::shared_ptr<EventSink<Event>>)) const {
    const std::string peer = PeerOf(*context, services_.trusted_proxies);
    const auto log =
        std::make_shared<CallLog>(services_.metrics, services_.tracer, CallLog::Transport::kGrpc, service_,
                                  method, peer, TraceOf(services_.tracer, context), RequestIdsOf(*context));
    if constexpr (!std::is_same_v<Event, v1::PutChunkProgress>) log->ExpectFirstToken();
    const CallerContext caller{.client = PeerHost(peer),
                               .deadline = DeadlineOf(*context),
                               .trace = log->trace(),
                               .on_dequeued = log->on_dequeued()};
    const auto stream = std::make_shared<EventStream>(
        streams_, caller.deadline, [log](const absl::Status& status) { log->End(status); });
    ByteWriteReactor* reactor = EventStream::MakeReactor(stream, context);
    const auto refuse = [context, stream](const absl::Status& status) { Refuse(context, *stream, status); };
    const auto calls = Admit(*context);
    if (!calls.ok()) {
      refuse(calls.status());
      return reactor;
    }
    const absl::Status accepted =
        threads_.Of(ServerThreads::Kind::kStream)
            .Run(TurnOf(*context, peer), bytes->Length(), [=, calls = *calls, bytes = *bytes] {
              if (stream->gone()) {
                stream->Close(absl::CancelledError("the client has gone"));
                return;
              }
              const Calls::Started handle = [&]() -> Calls::Started {
                Request request;
                absl::Status status = ParseByteBuffer(bytes, &request);
                if (!status.ok()) return status;
                return (calls.get()->*call)(std::move(request), caller,
                                            std::make_shared<StreamSink<Event>>(stream, log));
              }();
              if (handle.ok()) {
                stream->SetHandle(*handle);
              } else {
                refuse(handle.status());
              }
            });
    if (!accepted.ok()) refuse(accepted);
    return reactor;
  }

  /// `call` may ask for a CallerContext behind the request.
  template <typename Request, typename Response, typename... Caller>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes,
                                   grpc::ByteBuffer* response, const char* method,
                                   absl::StatusOr<Response> (Calls::*call)(Request, Caller...),
                                   ServerThreads::Kind kind = ServerThreads::Kind::kQuick) const {
    const std::string peer = PeerOf(*context, services_.trusted_proxies);
    const auto log =
        std::make_shared<CallLog>(services_.metrics, services_.tracer, CallLog::Transport::kGrpc, service_,
                                  method, peer, TraceOf(services_.tracer, context), RequestIdsOf(*context));
    const auto stream = std::make_shared<EventStream>(
        streams_, DeadlineOf(*context), [log](const absl::Status& status) { log->End(status); });
    grpc::ServerUnaryReactor* reactor = EventStream::MakeUnaryReactor(stream, context, response);
    const auto refuse = [context, stream](const absl::Status& status) { Refuse(context, *stream, status); };
    const auto calls = Admit(*context);
    if (!calls.ok()) {
      refuse(calls.status());
      return reactor;
    }
    const absl::Status accepted =
        threads_.Of(kind).Run(TurnOf(*context, peer), bytes->Length(), [=, calls = *calls, bytes = *bytes] {
          if (kind == ServerThreads::Kind::kLong || kind == ServerThreads::Kind::kTiers) YieldToAnswers();
          if (context->IsCancelled()) return stream->Close(absl::CancelledError("the client has gone"));
          Request request;
          absl::Status status = ParseByteBuffer(bytes, &request);
          if (!status.ok()) return refuse(status);
          const absl::StatusOr<Response> message = [&] {
            if constexpr (sizeof...(Caller) == 0) {
              return (calls.get()->*call)(std::move(request));
            } else {
              return (calls.get()->*call)(std::move(request), {.client = PeerHost(peer),
                                                               .deadline = DeadlineOf(*context),
                                                               .gone = [&] { return stream->gone(); }});
            }
          }();
          if (!message.ok()) return refuse(message.status());
          stream->Push(ToByteBuffer(*message));
          stream->Close(absl::OkStatus());
        });
    if (!accepted.ok()) refuse(accepted);
    return reactor;
  }

 private:
  /// The context is there until the call is finished, which is after Close.
  static void Refuse(grpc::CallbackServerContext* context, EventStream& stream, const absl::Status& status) {
    if (absl::IsResourceExhausted(status)) AddRetryHint(status, context);
    stream.Close(status);
  }

  absl::StatusOr<std::shared_ptr<Calls>> Admit(const grpc::CallbackServerContext& context) const {
    KVBLEND_ASSIGN_OR_RETURN(const std::string authorization, AuthorizationOf(context));
    if (services_.access != nullptr) return services_.access->Admit(authorization);
    return std::shared_ptr<Calls>(std::shared_ptr<void>(), services_.calls);  // owned by nobody here
  }

  /// With whose calls this one takes turns: its tenant's, else its client's.
  std::string TurnOf(const grpc::CallbackServerContext& context, const std::string& peer) const {
    if (services_.access == nullptr) return PeerHost(peer);
    const absl::StatusOr<std::string> tenant =
        services_.access->TenantOf(AuthorizationOf(context).value_or(std::string()));
    return tenant.ok() ? absl::StrCat("tenant ", *tenant) : PeerHost(peer);
  }

  const ServiceContext services_;
  ServerThreads& threads_;
  const std::shared_ptr<OpenStreams> streams_;
  const char* const service_;
};

}  // namespace kvblend::server
