#include "server/grpc/grpc_calls.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/retry_delay.h"
#include "base/status_macros.h"
#include "google/protobuf/empty.pb.h"
#include "google/protobuf/wrappers.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "kvblend/v1/admin.grpc.pb.h"
#include "kvblend/v1/chunks.grpc.pb.h"
#include "kvblend/v1/inference.grpc.pb.h"
#include "server/files/open_file.h"
#include "server/grpc/callback_threads.h"
#include "server/grpc/status.h"

namespace kvblend::server {
namespace {

constexpr int64_t kMaxPemBytes = int64_t{16} << 20;

absl::Status Explain(const std::string& address, const grpc::Status& status) {
  const absl::Status converted = FromGrpcStatus(status);
  if (!absl::IsUnavailable(converted)) return converted;
  return absl::UnavailableError(absl::StrCat("server ", address, ": ", converted.message()));
}

void SetDeadline(absl::Time deadline, grpc::ClientContext& context) {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
}

void ShowKey(const std::string& api_key, grpc::ClientContext& context) {
  if (!api_key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", api_key));
}

// gRPC ends the process over a header that HTTP can't carry, and prints it. The message leaves the key out.
absl::Status CheckKey(absl::string_view api_key) {
  constexpr auto can_be_sent = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); };
  if (absl::c_all_of(api_key, can_be_sent)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "KVBLEND_API_KEY has a blank, a line break or another character that no key has; allowed: the first "
      "line that `kvblend key new` printed");
}

absl::StatusOr<std::string> ReadPem(const char* flag, const std::string& path) {
  if (path.empty()) return "";
  absl::StatusOr<std::string> text = ReadNamed(path, Allowed::kFileOrStream, kMaxPemBytes);
  if (!text.ok())
    return absl::InvalidArgumentError(absl::StrCat(flag, " is '", path, "': ", text.status().message()));
  // gRPC would take a file without a certificate, and then call the server unreachable.
  if (!absl::StrContains(*text, "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " is '", path, "'; allowed: a file in PEM form"));
  }
  return text;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const GrpcTarget& target) {
  if (target.tls_ca_path.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions tls;
  KVBLEND_ASSIGN_OR_RETURN(tls.pem_root_certs, ReadPem("--tls-ca", target.tls_ca_path));
  KVBLEND_ASSIGN_OR_RETURN(tls.pem_cert_chain,
                           ReadPem("--tls-client-certificate", target.tls_certificate_path));
  KVBLEND_ASSIGN_OR_RETURN(tls.pem_private_key, ReadPem("--tls-client-key", target.tls_key_path));
  return grpc::SslCredentials(tls);
}

/// With when to try again, where the server has said so.
absl::Status WithRetryHint(absl::Status status, const grpc::ClientContext& context) {
  if (status.ok()) return status;
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto hint = trailers.find("retry-after-ms");
  int64_t milliseconds = 0;
  if (hint == trailers.end() ||
      !absl::SimpleAtoi(absl::string_view(hint->second.data(), hint->second.size()), &milliseconds)) {
    return status;
  }
  return WithRetryDelay(std::move(status), absl::Milliseconds(milliseconds));
}

/// One stream: reads until the end and keeps itself alive until then.
template <typename Request, typename Event>
class StreamReader : public grpc::ClientReadReactor<Event>, public RequestHandle {
 public:
  StreamReader(std::string address, Request request, std::shared_ptr<EventSink<Event>> sink)
      : address_(std::move(address)), request_(std::move(request)), sink_(std::move(sink)) {}

  /// `start(context, request, reactor)` is the stub's method.
  template <typename Start>
  static std::shared_ptr<RequestHandle> Run(std::shared_ptr<StreamReader> reader, const std::string& api_key,
                                            absl::Time deadline, Start start) {
    ShowKey(api_key, reader->context_);
    SetDeadline(deadline, reader->context_);
    reader->self_ = reader;
    start(&reader->context_, &reader->request_, reader.get());
    reader->StartRead(&reader->event_);
    reader->StartCall();
    return reader;
  }

  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    sink_->OnEvent(event_);
    this->StartRead(&event_);
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<StreamReader> self = std::move(self_);
    sink_->OnDone(WithRetryHint(Explain(address_, status), context_));
  }

 private:
  const std::string address_;
  const Request request_;
  const std::shared_ptr<EventSink<Event>> sink_;
  grpc::ClientContext context_;
  Event event_;
  std::shared_ptr<StreamReader> self_;
};

class GrpcCalls : public Calls {
 public:
  GrpcCalls(const GrpcTarget& target, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
      : address_(target.address),
        api_key_(target.api_key),
        unary_timeout_(target.unary_timeout),
        channel_(MakeChannel(target.address, credentials)) {}

  Started Generate(v1::GenerateRequest request, const CallerContext& caller,
                   std::shared_ptr<EventSink<v1::GenerateEvent>> sink) override {
    return Stream(std::move(request), caller, std::move(sink),
                  [this](auto... arguments) { inference_->async()->Generate(arguments...); });
  }
  Started Score(v1::ScoreRequest request, const CallerContext& caller,
                std::shared_ptr<EventSink<v1::ScoreEvent>> sink) override {
    return Stream(std::move(request), caller, std::move(sink),
                  [this](auto... arguments) { inference_->async()->Score(arguments...); });
  }
  Started Put(v1::PutChunksRequest request, const CallerContext& caller,
              std::shared_ptr<EventSink<v1::PutChunkProgress>> sink) override {
    return Stream(std::move(request), caller, std::move(sink),
                  [this](auto... arguments) { chunks_->async()->Put(arguments...); });
  }

  absl::StatusOr<v1::SplitDocumentResponse> Split(v1::SplitDocumentRequest request,
                                                  const CallerContext& caller) override {
    return Unary("Split", *chunks_, &v1::Chunks::Stub::Split, request, caller.deadline);
  }
  absl::StatusOr<v1::PrefetchChunksResponse> Prefetch(v1::PrefetchChunksRequest request) override {
    return Unary("Prefetch", *chunks_, &v1::Chunks::Stub::Prefetch, request);
  }
  absl::StatusOr<v1::StatChunksResponse> Stat(v1::StatChunksRequest request) override {
    return Unary("Stat", *chunks_, &v1::Chunks::Stub::Stat, request);
  }
  absl::StatusOr<v1::ListChunksResponse> List(v1::ListChunksRequest request) override {
    return Unary("List", *chunks_, &v1::Chunks::Stub::List, request);
  }
  absl::StatusOr<v1::DeleteChunksResponse> Delete(v1::DeleteChunksRequest request) override {
    return Unary("Delete", *chunks_, &v1::Chunks::Stub::Delete, request);
  }
  absl::StatusOr<v1::PinChunksResponse> Pin(v1::PinChunksRequest request) override {
    return Unary("Pin", *chunks_, &v1::Chunks::Stub::Pin, request);
  }
  absl::StatusOr<v1::GetInfoResponse> GetInfo(v1::GetInfoRequest request) override {
    return Unary("GetInfo", *admin_, &v1::Admin::Stub::GetInfo, request);
  }
  absl::StatusOr<v1::CorrectionInfo> UpdateCorrection(v1::UpdateCorrectionRequest request) override {
    return Unary("UpdateCorrection", *admin_, &v1::Admin::Stub::UpdateCorrection, request);
  }

  // The messages of grpc.health.v1 are not packaged for C++; on the wire an empty request asks about the
  // whole server, and the response is a message whose field 1 is an enumeration.
  absl::Status CheckHealth() override {
    constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
    constexpr int kServing = 1;
    const google::protobuf::Empty request;
    google::protobuf::Int32Value response;
    grpc::TemplatedGenericStub<google::protobuf::Empty, google::protobuf::Int32Value> health(channel_);
    grpc::ClientContext context;
    SetDeadline(absl::Now() + unary_timeout_, context);
    grpc::Status result;
    absl::Notification done;
    health.UnaryCall(&context, kMethod, grpc::StubOptions(), &request, &response, [&](grpc::Status status) {
      result = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    KVBLEND_RETURN_IF_ERROR(ExplainUnary("Check", result, unary_timeout_));
    if (response.value() == kServing) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("server ", address_, " is not serving: starting or shutting down"));
  }

 private:
  static std::shared_ptr<grpc::Channel> MakeChannel(
      const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);  // distributions over a large vocabulary take megabytes
    return grpc::CreateCustomChannel(address, credentials, arguments);
  }

  template <typename Request, typename Event, typename Start>
  Started Stream(Request request, const CallerContext& caller, std::shared_ptr<EventSink<Event>> sink,
                 Start start) {
    using Reader = StreamReader<Request, Event>;
    return Reader::Run(std::make_shared<Reader>(address_, std::move(request), std::move(sink)), api_key_,
                       caller.deadline, start);
  }

  absl::Status ExplainUnary(const char* name, const grpc::Status& status, absl::Duration patience) const {
    const absl::Status explained = Explain(address_, status);
    if (!absl::IsDeadlineExceeded(explained)) return explained;
    return absl::DeadlineExceededError(absl::StrCat("server ", address_, " has not answered ", name,
                                                    " within ", absl::FormatDuration(patience), ": ",
                                                    explained.message()));
  }

  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Unary(const char* name, Stub& stub,
                                 grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Response*),
                                 const Request& request, absl::Time deadline = absl::InfiniteFuture()) {
    grpc::ClientContext context;
    const absl::Time now = absl::Now();
    const absl::Duration patience = std::clamp(deadline - now, absl::ZeroDuration(), unary_timeout_);
    SetDeadline(now + patience, context);
    ShowKey(api_key_, context);
    Response response;
    const grpc::Status status = (stub.*call)(&context, request, &response);
    KVBLEND_RETURN_IF_ERROR(WithRetryHint(ExplainUnary(name, status, patience), context));
    return response;
  }

  const std::string address_;
  const std::string api_key_;
  const absl::Duration unary_timeout_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Inference::Stub> inference_ = v1::Inference::NewStub(channel_);
  const std::unique_ptr<v1::Chunks::Stub> chunks_ = v1::Chunks::NewStub(channel_);
  const std::unique_ptr<v1::Admin::Stub> admin_ = v1::Admin::NewStub(channel_);
};

}  // namespace

absl::StatusOr<std::shared_ptr<Calls>> MakeGrpcCalls(const GrpcTarget& target) {
  KVBLEND_RETURN_IF_ERROR(CheckKey(target.api_key));
  KVBLEND_ASSIGN_OR_RETURN(const auto credentials, Credentials(target));
  KeepCallbackThreads();
  return std::make_shared<GrpcCalls>(target, credentials);
}

}  // namespace kvblend::server
