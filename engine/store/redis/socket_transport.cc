#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"
#include "engine/store/redis/resolver.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {
namespace {

class SocketConnection final : public Connection {
 public:
  SocketConnection(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
  ~SocketConnection() override { close(fd_); }

  absl::StatusOr<size_t> Read(absl::Span<std::byte> buffer, absl::Time deadline) override {
    while (true) {
      const ssize_t count = recv(fd_, buffer.data(), buffer.size(), 0);
      if (count > 0) return static_cast<size_t>(count);
      if (count == 0) return absl::UnavailableError(peer_ + " closed the connection");
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) return Failed("reading", errno);
      if (absl::Status status = WaitFor(POLLIN, deadline); !status.ok()) return status;
    }
  }

  absl::Status Write(absl::Span<const std::byte> bytes, absl::Time deadline) override {
    while (!bytes.empty()) {
      const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        bytes.remove_prefix(static_cast<size_t>(count));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        if (absl::Status status = WaitFor(POLLOUT, deadline); !status.ok()) return status;
      } else if (errno != EINTR) {
        return Failed("writing", errno);
      }
    }
    return absl::OkStatus();
  }

  /// Ends the handshake that connect() began.
  absl::Status FinishConnecting(absl::Time deadline) {
    if (absl::Status status = WaitFor(POLLOUT, deadline); !status.ok()) return status;
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    return error == 0 ? absl::OkStatus() : Failed("connecting", error);
  }

  absl::Status Failed(const char* doing, int error) const {
    return absl::UnavailableError(absl::StrCat(doing, " ", peer_, ": ", strerror(error)));
  }

 private:
  absl::Status WaitFor(int16_t events, absl::Time deadline) const {
    while (true) {
      const absl::Duration left = deadline - SteadyNow();
      pollfd waiting{fd_, events, 0};
      // Rounded up: with 0 the loop would spin through the last millisecond.
      const int64_t milliseconds =
          std::clamp<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 0, INT_MAX);
      const int count = poll(&waiting, 1, static_cast<int>(milliseconds));
      if (count > 0) return absl::OkStatus();
      if (count < 0 && errno != EINTR) return Failed("waiting for", errno);
      if (count == 0 && left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(peer_ + " did not answer in time");
      }
    }
  }

  const int fd_;
  const std::string peer_;
};

class SocketTransport final : public Transport {
 public:
  absl::StatusOr<std::unique_ptr<Connection>> Connect(const Endpoint& endpoint,
                                                      absl::Time deadline) override {
    absl::StatusOr<std::vector<SocketAddress>> addresses = resolver_.Resolve(endpoint, deadline);
    if (!addresses.ok()) return addresses.status();
    absl::Status status;
    for (const SocketAddress& address : *addresses) {
      absl::StatusOr<std::unique_ptr<Connection>> connection = ConnectTo(address, endpoint, deadline);
      if (connection.ok()) return connection;
      status.Update(connection.status());
    }
    return status;
  }

 private:
  static absl::StatusOr<std::unique_ptr<Connection>> ConnectTo(const SocketAddress& address,
                                                               const Endpoint& endpoint,
                                                               absl::Time deadline) {
    const std::string peer = endpoint.ToString();
    const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return absl::UnavailableError(absl::StrCat("socket for ", peer, ": ", strerror(errno)));
    auto connection = std::make_unique<SocketConnection>(fd, peer);
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0) {
      if (errno != EINPROGRESS) return connection->Failed("connecting", errno);
      if (absl::Status status = connection->FinishConnecting(deadline); !status.ok()) return status;
    }
    return connection;
  }

  Resolver resolver_;
};

}  // namespace

std::unique_ptr<Transport> MakeSocketTransport() { return std::make_unique<SocketTransport>(); }

}  // namespace kvblend::store::redis
