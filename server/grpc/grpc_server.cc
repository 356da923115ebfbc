#include "server/grpc/grpc_server.h"

#include <algorithm>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/compression.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "server/grpc/callback_threads.h"
#include "server/grpc/certificates.h"
#include "server/grpc/listener.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

constexpr const char* kServiceNames[] = {"kvblend.v1.Inference", "kvblend.v1.Chunks", "kvblend.v1.Admin"};

// A client that has vanished is noticed after at most the sum of these. Clients may ping as often as the
// interval; who does so more often twice in a row is told "too_many_pings", and loses the connection.
constexpr int kKeepaliveTimeMs = 60'000;
constexpr int kKeepaliveTimeoutMs = 20'000;
constexpr int kMinClientPingIntervalMs = 10'000;
constexpr int kMaxPingStrikes = 2;

int Milliseconds(absl::Duration duration) { return static_cast<int>(absl::ToInt64Milliseconds(duration)); }

// What the library may keep of requests that are arriving and of answers that are leaving, of all connections
// together. When it has as much, it takes in no more until it has less, and gives up connections and calls.
constexpr int64_t kMemoryBytes = int64_t{256} << 20;
constexpr int64_t kMessagesInMemory = 16;
// Reflection, which needs no key, is the one service that the library runs on a thread for each open call.
// One of these always waits for calls.
constexpr int kLibraryThreads = 16;
// The time in which what was said last leaves: to watches that nothing is served any more.
constexpr absl::Duration kLastWords = absl::Milliseconds(100);

// The libraries' own words are for debugging: errors reach the caller as statuses.
void LogGrpc(gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); }

/// `certificates`: null: plain text.
std::shared_ptr<grpc::ServerCredentials> Credentials(const GrpcCertificates* certificates,
                                                     bool clients_show_theirs) {
  if (certificates == nullptr) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(certificates->NewProvider());
  options.watch_identity_key_cert_pairs();
  if (clients_show_theirs) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    // Any holder of a certificate from these authorities is a client; no host name is expected of it.
    options.set_check_call_host(false);
  }
  return grpc::experimental::TlsServerCredentials(options);
}

class GrpcServerImpl : public GrpcServer {
 public:
  GrpcServerImpl(const ServiceContext& context, const CallThreads::Limits& thread_limits,
                 const OpenStreams::Limits& stream_limits)
      : metrics_(context.metrics),
        threads_(thread_limits),
        streams_(std::make_shared<OpenStreams>(stream_limits)),
        services_(MakeServices(context, &threads_, streams_)),
        watch_(streams_) {}

  ~GrpcServerImpl() override {
    if (server_ != nullptr) Shutdown(absl::Now());
  }

  absl::Status Start(const GrpcServerOptions& options) {
    if (options.tls.enabled()) {
      KVBLEND_ASSIGN_OR_RETURN(certificates_, GrpcCertificates::Open(options.tls));
    }
    KVBLEND_ASSIGN_OR_RETURN(listener_,
                             Listener::Open(options.address, options.limits.max_connections,
                                            [metrics = metrics_] { metrics->CountGrpcRefusal(); }));
    grpc::ServerBuilder builder;
    acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        Credentials(certificates_.get(), !options.tls.client_ca_path.empty()));
    builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
    // gRPC 1.51 decompresses the whole of a message before it looks how large it is: a megabyte of it may be
    // a gigabyte.
    for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_DEFLATE, GRPC_COMPRESS_GZIP}) {
      builder.SetCompressionAlgorithmSupportStatus(algorithm, false);
    }
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.limits.max_concurrent_streams);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, static_cast<int>(options.limits.max_header_bytes));
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                               Milliseconds(options.limits.handshake_timeout));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(options.limits.idle_timeout));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinClientPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxPingStrikes);
    grpc::ResourceQuota quota("kvblend-server");
    quota.Resize(static_cast<size_t>(std::max(kMemoryBytes, kMessagesInMemory * options.max_message_bytes)));
    quota.SetMaxThreads(kLibraryThreads);
    builder.SetResourceQuota(quota);
    for (const auto& service : services_) builder.RegisterService(service.get());
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::InternalError(absl::StrCat("gRPC could not start a server for ", options.address));
    }
    SetServing(false);
    listener_->Start([this](int listening_fd, int fd) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.listener_fd = listening_fd;
      connection.fd = fd;
      acceptor_->HandleNewConnection(&connection);
    });
    return absl::OkStatus();
  }

  int port() const override { return listener_->port(); }

  void SetServing(bool serving) override {
    grpc::HealthCheckServiceInterface* health = server_->GetHealthCheckService();
    health->SetServingStatus("", serving);
    for (const char* name : kServiceNames) health->SetServingStatus(name, serving);
  }

  void Shutdown(absl::Time deadline) override {
    listener_->Stop();  // what is handed to a server that was shut down is never closed
    absl::Notification ended;
    std::thread others([&] { EndOthers(deadline, ended); });
    server_->Shutdown(absl::ToChronoTime(deadline));
    ended.Notify();
    others.join();
    server_->Wait();
    threads_.Stop();  // no call is left; but a thread may still be on its way back from the last one
  }

 private:
  // The library's own calls, which are watches of health and reflection, are open for as long as their
  // clients like, and have nothing more to say. So they end with the last call of ours.
  void EndOthers(absl::Time deadline, const absl::Notification& ended) {
    if (!streams_->AwaitNone(deadline) || ended.WaitForNotificationWithTimeout(kLastWords)) return;
    grpc_server_cancel_all_calls(server_->c_server());
  }

  Metrics* const metrics_;
  ServerThreads threads_;
  const std::shared_ptr<OpenStreams> streams_;
  // Both must outlive server_.
  const std::vector<std::shared_ptr<grpc::Service>> services_;
  std::unique_ptr<GrpcCertificates> certificates_;
  StuckStreamsWatch watch_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::unique_ptr<Listener> listener_;  // last: its thread uses the others
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
  CallThreads::Limits thread_limits;
  thread_limits.max_waiting_bytes = static_cast<size_t>(std::max(kMemoryBytes, options.max_message_bytes));
  const OpenStreams::Limits stream_limits = {
      .max_unsent_bytes = static_cast<size_t>(options.limits.max_unsent_bytes),
      .write_timeout = options.limits.write_timeout};
  auto server = std::make_unique<GrpcServerImpl>(context, thread_limits, stream_limits);
  if (absl::Status status = server->Start(options); !status.ok()) return status;
  return server;
}

}  // namespace kvblend::server
