#include "server/http/http_server.h"

#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace kvblend::server {
namespace {

constexpr int kThreads = 4;
constexpr int kIoTimeoutSeconds = 5;       // for one read or write
constexpr int kKeepAliveSeconds = 20;      // idle connections; scrapers come every 15 s or so
constexpr size_t kMaxRequestBytes = 4096;  // only GET is served: bodies are of no use

constexpr char kPlainText[] = "text/plain; charset=utf-8";

class HttpServerImpl : public HttpServer {
 public:
  explicit HttpServerImpl(Callbacks callbacks) : callbacks_(std::move(callbacks)) {
    server_.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    server_.set_read_timeout(kIoTimeoutSeconds);
    server_.set_write_timeout(kIoTimeoutSeconds);
    server_.set_keep_alive_timeout(kKeepAliveSeconds);
    server_.set_payload_max_length(kMaxRequestBytes);
    server_.set_tcp_nodelay(true);
    // The library's default is SO_REUSEPORT, with which a second server would silently share the port.
    server_.set_socket_options([](socket_t socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(callbacks_.metrics(), "text/plain; version=0.0.4; charset=utf-8");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", kPlainText);
    });
    server_.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
      const std::string reason = callbacks_.not_ready_reason();
      response.status = reason.empty() ? 200 : 503;
      response.set_content(reason.empty() ? "ready\n" : absl::StrCat(reason, "\n"), kPlainText);
    });
    server_.Get("/", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(
          "kvblend-server\n/metrics  Prometheus metrics\n/healthz  200 while the process lives\n"
          "/readyz   200 while requests are accepted\n",
          kPlainText);
    });
  }

  ~HttpServerImpl() override {
    if (!thread_.joinable()) return;
    server_.stop();
    thread_.join();
  }

  absl::Status Start(const HostPort& address) {
    errno = 0;
    if (address.port == 0) {
      port_ = server_.bind_to_any_port(address.host);
    } else if (server_.bind_to_port(address.host, address.port)) {
      port_ = address.port;
    }
    if (port_ <= 0) {
      return absl::UnavailableError(absl::StrFormat("can't listen for HTTP on %s port %d: %s", address.host,
                                                    address.port,
                                                    errno != 0 ? std::strerror(errno) : "bad address"));
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // stop() does nothing before the loop has begun.
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return absl::OkStatus();
  }

  int port() const override { return port_; }

 private:
  const Callbacks callbacks_;
  httplib::Server server_;
  int port_ = -1;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& text) {
  const size_t colon = text.rfind(':');
  HostPort parsed;
  if (colon != std::string::npos && colon > 0 && absl::SimpleAtoi(text.substr(colon + 1), &parsed.port) &&
      parsed.port >= 0 && parsed.port <= 65535) {
    parsed.host = text.substr(0, colon);
    const bool bracketed = parsed.host.size() > 2 && parsed.host.front() == '[' && parsed.host.back() == ']';
    if (bracketed) parsed.host = parsed.host.substr(1, parsed.host.size() - 2);
    if (bracketed || parsed.host.find_first_of(":[]") == std::string::npos) return parsed;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is '", text,
                   "'; allowed: HOST:PORT or [IPV6]:PORT with a port from 0 (any free one) to 65535"));
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address, Callbacks callbacks) {
  auto server = std::make_unique<HttpServerImpl>(std::move(callbacks));
  if (absl::Status status = server->Start(address); !status.ok()) return status;
  return server;
}

}  // namespace kvblend::server
