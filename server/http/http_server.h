// The HTTP side for operators: /metrics, /healthz, /readyz. No request data passes here.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace kvblend::server {

/// Where a listener listens, as "HOST:PORT", "[V6]:PORT"; port 0 lets the system choose.
struct HostPort {
  std::string host;
  int port = 0;
};

/// kInvalidArgument naming `flag`.
absl::StatusOr<HostPort> ParseHostPort(const std::string& flag, const std::string& text);

class HttpServer {
 public:
  /// All callbacks may be called from several threads at once, until the server is destroyed.
  struct Callbacks {
    std::function<std::string()> metrics;  // the exposition
    /// Empty when requests are accepted, else why not, in one line.
    std::function<std::string()> not_ready_reason;
  };

  /// Binds and starts serving on a small fixed number of threads. kUnavailable, naming the address, when it
  /// can't be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HostPort& address, Callbacks callbacks);
  /// Stops accepting, finishes running requests.
  virtual ~HttpServer() = default;

  /// The port bound.
  virtual int port() const = 0;
};

}  // namespace kvblend::server
