#include "server/grpc/grpc_server.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/grpc/callback_threads.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

constexpr const char* kServiceNames[] = {"kvblend.v1.Inference", "kvblend.v1.Chunks", "kvblend.v1.Admin"};

// A client that has vanished is noticed after at most the sum of these. Clients may ping as often as the
// interval.
constexpr int kKeepaliveTimeMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kMinClientPingIntervalMs = 10'000;

// The libraries' own words are for debugging: errors reach the caller as statuses.
void LogGrpc(gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); }

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(const TlsFiles& files) {
  if (!files.enabled()) return grpc::InsecureServerCredentials();
  // What reads the files for gRPC says nothing of bad ones.
  KVBLEND_RETURN_IF_ERROR(LoadTlsContext(files).status());
  constexpr unsigned kLookEverySeconds = 1;
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key_path, files.certificate_path, files.client_ca_path, kLookEverySeconds));
  options.watch_identity_key_cert_pairs();
  if (!files.client_ca_path.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    // A client is whoever a certificate of these was given to; no name is expected of it.
    options.set_check_call_host(false);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

class GrpcServerImpl : public GrpcServer {
 public:
  explicit GrpcServerImpl(const ServiceContext& context) : services_(MakeServices(context)) {}

  ~GrpcServerImpl() override {
    if (server_ != nullptr) Shutdown(absl::Now());
  }

  absl::Status Start(const GrpcServerOptions& options) {
    auto credentials = Credentials(options.tls);
    if (!credentials.ok()) return credentials.status();
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.address, *std::move(credentials), &port_);
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
    // Otherwise a second server would silently share the port.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinClientPingIntervalMs);
    for (const auto& service : services_) builder.RegisterService(service.get());
    server_ = builder.BuildAndStart();
    const bool is_unix = absl::StartsWith(options.address, "unix:");
    if (server_ == nullptr || (port_ <= 0 && !is_unix)) {
      return absl::UnavailableError(
          absl::StrCat("can't listen for gRPC on ", options.address,
                       ": the address is in use, not well-formed or not this machine's"));
    }
    if (is_unix) port_ = 0;
    SetServing(false);
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", serving);
    for (const char* name : kServiceNames) health->SetServingStatus(name, serving);
  }

  void Shutdown(absl::Time deadline) override {
    server_->Shutdown(absl::ToChronoTime(deadline));
    server_->Wait();
  }

 private:
  const std::vector<std::shared_ptr<grpc::Service>> services_;  // must outlive server_
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

void LogProtobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  spdlog::debug("protobuf: {}", message);
}

// Process-wide settings, to be made before the first server is built.
void ConfigureLibraries() {
  static const bool configured = [] {
    gpr_set_log_function(LogGrpc);
    google::protobuf::SetLogHandler(LogProtobuf);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    KeepCallbackThreads();
    return true;
  }();
  static_cast<void>(configured);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options,
                                                              const ServiceContext& context) {
  ConfigureLibraries();
  auto server = std::make_unique<GrpcServerImpl>(context);
  if (absl::Status status = server->Start(options); !status.ok()) return status;
  return server;
}

}  // namespace kvblend::server
