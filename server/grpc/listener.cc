#include "server/grpc/listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "server/files/listening_sockets.h"
#include "server/files/open_files.h"
#include "spdlog/spdlog.h"

namespace kvblend::server {
namespace {

constexpr char kUnixPrefix[] = "unix:";
constexpr int kAcceptPauseMs = 100;  // when the system has no descriptor left
// A server that starts holds the lock of its path for less than a millisecond.
constexpr absl::Duration kLockPatience = absl::Seconds(5), kLockRetry = absl::Milliseconds(5);

ino_t InodeOf(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 ? found.st_ino : 0;
}

Descriptor NewUnixSocket() {
  return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool IsSameFile(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/// Held while a server looks what is at the path of a Unix socket and puts its own there: to another server
/// that starts at once, the socket in between, which is bound and does not listen yet, would look like one
/// that a killed server has left.
class SocketPathLock {
 public:
  explicit SocketPathLock(const std::string& path) : lock_path_(path + ".lock") {}
  ~SocketPathLock() {
    if (lock_.get() >= 0) unlink(lock_path_.c_str());  // while it is held: see Take
  }

  /// OK, or why the lock can't be had. To be called once.
  absl::Status Take() {
    const absl::Time end = SteadyNow() + kLockPatience;
    for (;;) {
      Descriptor file(open(lock_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
      if (file.get() < 0) return Failed(strerror(errno));
      // Some network file systems know no locks; a server starts there all the same.
      if (flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno == ENOLCK || errno == EOPNOTSUPP) {
        // Whoever had it before has removed the file; by now there may be another one of that name.
        struct stat held, named;
        if (fstat(file.get(), &held) != 0) return Failed(strerror(errno));
        if (stat(lock_path_.c_str(), &named) != 0 || !IsSameFile(held, named)) continue;
        lock_ = std::move(file);
        return absl::OkStatus();
      }
      if (errno != EWOULDBLOCK) return Failed(strerror(errno));
      if (SteadyNow() >= end) return Failed("another process holds it");
      absl::SleepFor(kLockRetry);
    }
  }

 private:
  absl::Status Failed(const char* why) const {
    return absl::UnavailableError(absl::StrCat("can't lock ", lock_path_, ": ", why));
  }

  const std::string lock_path_;
  Descriptor lock_;
};

}  // namespace

bool OpenConnections::HasRoom() {
  if (static_cast<int64_t>(handed_on_.size()) < max_) return true;
  handed_on_.erase(std::remove_if(handed_on_.begin(), handed_on_.end(),
                                  [](const auto& one) { return InodeOf(one.first) != one.second; }),
                   handed_on_.end());
  return static_cast<int64_t>(handed_on_.size()) < max_;
}

void OpenConnections::Add(int fd) { handed_on_.emplace_back(fd, InodeOf(fd)); }

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(const std::string& address, int32_t max_connections,
                                                         std::function<void()> on_refused) {
  std::unique_ptr<Listener> listener(new Listener(address, max_connections, std::move(on_refused)));
  KVBLEND_RETURN_IF_ERROR(listener->Bind());
  AllowMoreFiles(static_cast<rlim_t>(max_connections));
  return listener;
}

Listener::~Listener() {
  RemoveUnixPath();
  Stop();
}

absl::Status Listener::Failed(const std::string& why) const {
  return absl::UnavailableError(absl::StrCat("can't listen for gRPC on ", address_, ": ", why));
}

absl::Status Listener::Bind() {
  stop_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (stop_.get() < 0) return Failed(strerror(errno));
  if (absl::StartsWith(address_, kUnixPrefix)) return BindUnix(address_.substr(strlen(kUnixPrefix)));
  const size_t colon = address_.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(address_.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--grpc-address is '", address_,
        "'; allowed: HOST:PORT, [IPV6]:PORT or unix:PATH, with a port from 0 (any free one) to 65535"));
  }
  std::string host = address_.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return BindTcp(host, port);
}

absl::Status Listener::BindUnix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(absl::StrCat("--grpc-address is '", address_, "', a path of ",
                                                   path.size(), " bytes; allowed: 1 to ",
                                                   sizeof address.sun_path - 1));
  }
  memcpy(address.sun_path, path.data(), path.size());
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  Descriptor socket = NewUnixSocket();
  if (socket.get() < 0) return Failed(strerror(errno));
  SocketPathLock lock(path);
  if (const absl::Status taken = lock.Take(); !taken.ok()) return Failed(std::string(taken.message()));
  // The socket of a server that was killed is removed, that of one that answers stays.
  struct stat found;
  if (stat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode)) {
    const Descriptor asking = NewUnixSocket();
    if (connect(asking.get(), generic, sizeof address) != 0 && errno == ECONNREFUSED) unlink(path.c_str());
  }
  if (bind(socket.get(), generic, sizeof address) != 0 || listen(socket.get(), SOMAXCONN) != 0) {
    return Failed(strerror(errno));
  }
  unix_path_ = path;
  if (stat(path.c_str(), &found) == 0) unix_file_ = {found.st_dev, found.st_ino};
  sockets_.push_back(std::move(socket));
  return absl::OkStatus();
}

void Listener::RemoveUnixPath() {
  // Somebody may have removed the path, and another server be there. While our socket is open, no other file
  // gets its number.
  struct stat found;
  if (!unix_path_.empty() && stat(unix_path_.c_str(), &found) == 0 &&
      unix_file_ == std::pair(found.st_dev, found.st_ino)) {
    unlink(unix_path_.c_str());
  }
  unix_path_.clear();
}

absl::Status Listener::BindTcp(const std::string& host, int port) {
  absl::StatusOr<ListeningSockets> made = ListenOn(host, port);
  if (!made.ok()) return Failed(std::string(made.status().message()));
  sockets_ = std::move(made->sockets);
  port_ = made->port;
  return absl::OkStatus();
}

void Listener::Start(OnConnection on_connection) {
  on_connection_ = std::move(on_connection);
  absl::MutexLock lock(&mutex_);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  absl::MutexLock lock(&mutex_);
  if (!thread_.joinable()) return;
  RemoveUnixPath();
  eventfd_write(stop_.get(), 1);
  thread_.join();
}

void Listener::Run() {
  std::vector<pollfd> polled = {{.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  for (const Descriptor& socket : sockets_)
    polled.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
  for (;;) {
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) break;
    if (polled.front().revents != 0) break;
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) Accept(polled[i].fd);
    }
  }
  sockets_.clear();
}

void Listener::Accept(int listening_fd) {
  const int fd = accept4(listening_fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM) return;
    if (warn_waiting_.IsDue()) {
      spdlog::warn("gRPC: connections have to wait, as none can be accepted: {}", strerror(error));
    }
    pollfd stop = {.fd = stop_.get(), .events = POLLIN, .revents = 0};
    poll(&stop, 1, kAcceptPauseMs);
    return;
  }
  const bool has_room = connections_.HasRoom();
  if (has_room && LeavesSpareFiles(fd)) {
    connections_.Add(fd);
    on_connection_(listening_fd, fd);
    return;
  }
  // Before any byte of HTTP/2: clients take it for a failed connection, and wait longer before the next.
  close(fd);
  if (on_refused_ != nullptr) on_refused_();
  if (!warn_refused_.IsDue()) return;
  if (has_room) {
    spdlog::warn(
        "gRPC: a connection was closed because it is open file {}; the last that the system allows are kept "
        "for health pages, chunks on disk and the like",
        fd);
  } else {
    spdlog::warn("gRPC: a connection was closed because there are --grpc-max-connections, {}, already",
                 max_connections_);
  }
}

}  // namespace kvblend::server
