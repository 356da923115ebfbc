#include "server/http/http_server.h"

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/once_a_minute.h"
#include "base/status_macros.h"
#include "server/files/listening_sockets.h"
#include "server/files/open_files.h"
#include "server/http/connection.h"
#include "server/http/server_core.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

constexpr int kFull = 503;                              // as status
constexpr std::chrono::milliseconds kAcceptPause(100);  // when the system has no descriptor left

class HttpServerImpl : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, Router router, ErrorPage error_page)
      : core_(std::make_shared<ServerCore>(options, std::move(router), std::move(error_page))),
        strand_(asio::make_strand(core_->io)),
        work_(core_->io.get_executor()) {}

  ~HttpServerImpl() override { Shutdown(absl::InfinitePast()); }

  absl::Status Listen() {
    const HostPort& address = core_->options.address;
    if (core_->options.tls.enabled()) {
      KVBLEND_ASSIGN_OR_RETURN(tls_, ReloadingTls::Open(core_->options.tls));
    }
    AllowMoreFiles(static_cast<rlim_t>(core_->options.max_connections));
    absl::StatusOr<ListeningSockets> made = ListenOn(address.host, address.port);
    if (!made.ok()) {
      return absl::UnavailableError(absl::StrFormat("can't listen for HTTP on %s port %d: %s", address.host,
                                                    address.port, made.status().message()));
    }
    port_ = made->port;
    for (Descriptor& socket : made->sockets) {
      // Acceptors want to be told which protocol the socket has, and tell it to the sockets that they make.
      sockaddr_storage bound = {};
      socklen_t size = sizeof bound;
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size);
      AsioError error;
      places_.push_back(std::make_unique<Place>(strand_));
      places_.back()->acceptor.assign(bound.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), socket.get(),
                                      error);
      if (error) return absl::UnavailableError(absl::StrCat("can't listen for HTTP: ", error.message()));
      socket.Release();  // it is the acceptor's
    }
    core_->name = Name();
    for (int i = 0; i < core_->options.num_threads; ++i) {
      threads_.emplace_back([this] { core_->io.run(); });
    }
    asio::post(strand_, [this] {
      for (const auto& place : places_) Accept(*place);
    });
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  int64_t num_connections() const override {
    absl::MutexLock lock(&core_->mutex);
    return static_cast<int64_t>(core_->connections.size());
  }

  int64_t num_waiting() const override {
    int64_t waiting = 0;
    for (const auto& [kind, threads] : core_->handlers) waiting += threads.num_waiting();
    return waiting;
  }

  void Drain() override {
    core_->draining = true;
    for (const auto& connection : core_->Connections()) connection->Drain();
  }

  void Shutdown(absl::Time deadline) override {
    if (core_->stopped) return;
    Drain();
    {
      absl::MutexLock lock(&core_->mutex);
      shutting_down_ = true;
    }
    asio::post(strand_, [this] {
      for (const auto& place : places_) {
        AsioError ignored;
        place->acceptor.close(ignored);
        place->pause.cancel();
      }
    });
    WaitForConnections(deadline);
    for (const auto& connection : core_->Connections()) connection->Close();
    WaitForConnections(absl::InfiniteFuture());
    for (auto& [kind, threads] : core_->handlers) threads.Join();  // what they answer goes nowhere
    // Nothing is left to wait for, so the threads end when what was posted is done.
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    core_->stopped = true;
  }

 private:
  /// One of the addresses.
  struct Place {
    explicit Place(const asio::strand<asio::io_context::executor_type>& strand)
        : acceptor(strand), pause(strand) {}
    tcp::acceptor acceptor;
    asio::steady_timer pause;
  };

  void WaitForConnections(absl::Time deadline) {
    absl::MutexLock lock(&core_->mutex);
    const auto none_left = [this]() ABSL_SHARED_LOCKS_REQUIRED(core_->mutex) {
      return core_->connections.empty();
    };
    core_->mutex.AwaitWithDeadline(absl::Condition(&none_left), deadline);
  }

  std::string Name() const { return absl::StrFormat("%s port %d", core_->options.address.host, port_); }

  void Accept(Place& place) {
    if (!place.acceptor.is_open()) return;
    const auto serve = [this, &place](const AsioError& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        if (error != asio::error::connection_aborted && warn_waiting_.IsDue()) {
          spdlog::warn("HTTP on {}: connections have to wait, as none can be accepted: {}", Name(),
                       error.message());
        }
        place.pause.expires_after(kAcceptPause);
        place.pause.async_wait([this, &place](const AsioError&) { Accept(place); });
        return;
      }
      Admit(place, std::move(socket));
    };
    place.acceptor.async_accept(asio::make_strand(core_->io), serve);
  }

  /// Connections cost their clients nothing, so a thousand that ask for nothing must not keep out those who
  /// ask: they give way, the one that has been idle longest first. Meanwhile nobody else is accepted there.
  void Admit(Place& place, tcp::socket socket) {
    if (num_connections() >= core_->options.max_connections) {
      if (const std::shared_ptr<Connection> idle = core_->LongestIdle(); idle != nullptr) {
        const auto waiting = std::make_shared<tcp::socket>(std::move(socket));
        idle->CloseIfIdle([this, &place, waiting](bool closed) {
          asio::post(strand_, [this, &place, waiting, closed] {
            if (closed) NoteEviction();
            Admit(place, std::move(*waiting));
          });
        });
        return;
      }
    }
    Serve(std::move(socket));
    Accept(place);
  }

  void NoteEviction() {
    if (core_->options.on_evicted != nullptr) core_->options.on_evicted();
    if (!warn_evicted_.IsDue()) return;
    const std::string limit = core_->LimitName(kFull);
    spdlog::warn(
        "HTTP on {}: an idle connection was closed to make room for another: there were {} already{}{}",
        Name(), core_->options.max_connections, limit.empty() ? "" : "; limit: ", limit);
  }

  void Serve(tcp::socket socket) {
    const bool has_room = num_connections() < core_->options.max_connections;
    const bool has_files = !core_->options.leaves_spare_files || LeavesSpareFiles(socket.native_handle());
    if (!has_room || !has_files) {
      if (has_room) {
        core_->NoteRefusal(
            kFull,
            absl::StrCat("a connection was refused because it is open file ", socket.native_handle(),
                         "; the last that the system allows are kept for health pages, chunks "
                         "on disk and the like"),
            "");
      } else {
        core_->NoteRefusal(kFull,
                           absl::StrCat("there are ", core_->options.max_connections, " connections already"),
                           core_->LimitName(kFull));
      }
      if (tls_ != nullptr) return;  // there is no room for a handshake
      // One small packet into an empty buffer: it is sent or it is not, and nobody waits.
      const HttpResponse full =
          WithRequestId(core_->error_page(kFull, "the server has too many connections; try again later"));
      const std::string bytes = ResponseHead(full, BodyFraming::kLength, /*close=*/true) + full.body;
      AsioError ignored;
      socket.non_blocking(true, ignored);
      socket.write_some(asio::buffer(bytes), ignored);
      return;
    }
    const auto connection =
        std::make_shared<Connection>(core_, std::move(socket), tls_ == nullptr ? nullptr : tls_->Get());
    {
      absl::MutexLock lock(&core_->mutex);
      if (shutting_down_) return;  // nobody would close it
      core_->connections[connection.get()] = connection;
    }
    connection->Start();
  }

  const std::shared_ptr<ServerCore> core_;
  const asio::strand<asio::io_context::executor_type> strand_;
  std::vector<std::unique_ptr<Place>> places_;  // constant once there are threads; else the strand's
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  int port_ = -1;
  OnceAMinute warn_waiting_, warn_evicted_;  // the strand's
  bool shutting_down_ ABSL_GUARDED_BY(core_->mutex) = false;
  std::unique_ptr<ReloadingTls> tls_;  // null: plain text
  std::vector<std::thread> threads_;
};

}  // namespace

std::vector<std::shared_ptr<Connection>> ServerCore::Connections() {
  std::vector<std::shared_ptr<Connection>> all;
  absl::MutexLock lock(&mutex);
  for (const auto& [unused, weak] : connections) {
    if (auto connection = weak.lock()) all.push_back(std::move(connection));
  }
  return all;
}

std::shared_ptr<Connection> ServerCore::LongestIdle() {
  absl::MutexLock lock(&mutex);
  int64_t since = Connection::kBusy;
  const std::weak_ptr<Connection>* longest = nullptr;
  for (const auto& [connection, weak] : connections) {
    if (connection->idle_since() >= since) continue;
    since = connection->idle_since();
    longest = &weak;
  }
  return longest == nullptr ? nullptr : longest->lock();
}

void ServerCore::CloseLargest() {
  // Kept outside the lock, which the last holder of a connection takes when it lets go.
  const std::vector<std::shared_ptr<Connection>> all = Connections();
  const auto largest = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a->unsent_bytes() < b->unsent_bytes();
  });
  if (largest != all.end()) (*largest)->Close();
}

std::shared_ptr<Connection> ServerCore::LargestArriving() {
  const std::vector<std::shared_ptr<Connection>> all = Connections();
  const auto largest = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a->arriving_bytes() < b->arriving_bytes();
  });
  return largest == all.end() ? nullptr : *largest;
}

void ServerCore::NoteRefusal(int status, const std::string& why, const std::string& limit) {
  if (options.on_refused != nullptr) options.on_refused(status);
  {
    absl::MutexLock lock(&mutex);
    if (!warn_refused[status].IsDue()) return;
  }
  // Whoever tries paths does not harm anybody.
  const bool is_harmless = status == 404 || status == 405;
  spdlog::log(is_harmless ? spdlog::level::info : spdlog::level::warn,
              "HTTP on {}: refused with status {} ({}){}{}{}{}", name, status,
              std::string(StatusName(status)), why.empty() ? "" : ": ", why,
              limit.empty() ? "" : "; limit: ", limit);
}

std::string ServerCore::LimitName(int status) const {
  const auto found = options.limit_names.find(status);
  return found == options.limit_names.end() ? "" : found->second;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, Router router,
                                                              ErrorPage error_page) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(router), std::move(error_page));
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  return server;
}

}  // namespace kvblend::server
