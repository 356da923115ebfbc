// The sockets on which gRPC's connections come in. They are ours and not the library's, because gRPC 1.51
// takes any number of connections: here they are counted before it gets them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/once_a_minute.h"
#include "server/files/descriptor.h"

namespace kvblend::server {

/// Which of the connections that were handed on are still open. Nobody tells when the library closes one; but
/// its descriptor is then closed, or another file. Not thread-safe.
class OpenConnections {
 public:
  explicit OpenConnections(int32_t max) : max_(max) {}
  /// Whether there is room for one more; asks the system only where too many were handed on.
  bool HasRoom();
  void Add(int fd);

 private:
  const int32_t max_;
  std::vector<std::pair<int, ino_t>> handed_on_;
};

class Listener {
 public:
  /// The descriptor is non-blocking, and the callee's to close.
  using OnConnection = std::function<void(int listening_fd, int fd)>;

  /// Binds "HOST:PORT" (port 0: any free one), "[IPV6]:PORT", as ListenOn says, or "unix:PATH". A socket that
  /// a killed server left at PATH is replaced, and PATH.lock is there for that moment. kUnavailable naming
  /// `address`.
  /// `on_refused`: called for every connection that is closed because there is no room, from Start's thread.
  static absl::StatusOr<std::unique_ptr<Listener>> Open(const std::string& address, int32_t max_connections,
                                                        std::function<void()> on_refused = nullptr);
  ~Listener();

  /// The port bound; 0 for a unix socket.
  int port() const { return port_; }

  /// Calls `on_connection` from a thread of its own; a connection that is one too many is closed instead. To
  /// be called once.
  void Start(OnConnection on_connection);

  /// Closes the listening sockets, removes the path of a Unix socket, and waits for a call under way. Again:
  /// nothing. Thread-safe.
  void Stop();

 private:
  Listener(std::string address, int32_t max_connections, std::function<void()> on_refused)
      : address_(std::move(address)),
        on_refused_(std::move(on_refused)),
        connections_(max_connections),
        max_connections_(max_connections) {}
  absl::Status Bind();
  absl::Status BindUnix(const std::string& path);
  void RemoveUnixPath();  // while the socket is open
  absl::Status BindTcp(const std::string& host, int port);
  absl::Status Failed(const std::string& why) const;
  void Run();
  void Accept(int listening_fd);

  const std::string address_;
  std::string unix_path_;              // to be removed; empty: none
  std::pair<dev_t, ino_t> unix_file_;  // the file that is to be removed there
  int port_ = 0;
  std::vector<Descriptor> sockets_;  // the thread's, once it runs
  Descriptor stop_;                  // an eventfd
  OnConnection on_connection_;
  const std::function<void()> on_refused_;  // null: nobody counts them
  OpenConnections connections_;             // the thread's
  const int32_t max_connections_;
  OnceAMinute warn_refused_, warn_waiting_;  // the thread's
  absl::Mutex mutex_;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::server
