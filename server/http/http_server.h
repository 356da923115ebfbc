// An HTTP/1.1 server: many connections on few threads (Boost.Asio), every wait and every buffer bounded.
//
// The network has threads of its own, which never wait for a handler; handlers have others, and answer
// through a responder from any thread at any time. A connection's requests are answered one after the other,
// in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/files/trusted_proxies.h"
#include "server/http/allowed_hosts.h"
#include "server/http/host_port.h"
#include "server/http/responder.h"
#include "server/http/router.h"
#include "server/tls/server_tls.h"

namespace kvblend::server {

struct HttpServerOptions {
  HostPort address;
  TlsFiles tls;                         // not enabled: plain text
  AllowedHosts allowed_hosts;           // with another Host: 421
  TrustedProxies trusted_proxies;       // tell in X-Forwarded-For whose requests they forward
  int32_t max_connections = 1024;       // one more takes the place of an idle one, or gets 503
  bool leaves_spare_files = true;       // 503 too instead of the last open files that the system allows
  int64_t max_header_bytes = 16 << 10;  // of the request line and headers: else 431
  int64_t max_body_bytes = 4096;        // of one request: else 413
  // Of bodies that no handler is done with: else 503 for the one of which most has come, of those not whole.
  int64_t max_pending_body_bytes = int64_t{256} << 20;
  int64_t small_body_bytes = 64 << 10;           // bodies up to this are taken all the same
  int64_t max_unsent_bytes = int64_t{16} << 20;  // of one stream: else the client has gone
  int64_t max_unsent_bytes_of_all = int64_t{512}
                                    << 20;  // of all answers: else the one that has most loses its client
  absl::Duration request_timeout =
      absl::Seconds(30);                            // from the first byte of a request to its last: else 408
  absl::Duration idle_timeout = absl::Seconds(75);  // before and between requests: closed
  absl::Duration write_timeout =
      absl::Seconds(30);  // for a piece of an answer to leave, or 16 KiB/s of it: else the client has gone
  /// Called for every request and connection that is refused without a handler, with the status that the
  /// client gets (503 too where TLS leaves no way to say so); from any of the network's threads.
  std::function<void(int status)> on_refused = nullptr;
  /// Called for every connection that was closed because another took its place, from any of these threads.
  std::function<void()> on_evicted = nullptr;
  std::map<int, std::string> limit_names = {};  // what sets the limit behind a status, for the log
  int num_threads = 2;                          // for the network
  int num_handler_threads = 4;                  // for each kind of handlers
};

/// Thread-safe.
class HttpServer {
 public:
  /// Binds, as ListenOn says, and serves at once. `error_page` makes the answers to requests that reach no
  /// handler.
  /// kUnavailable, naming the address, when it can't be bound; kInvalidArgument for files of TLS.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options, Router router,
                                                           ErrorPage error_page);
  /// As Shutdown with a deadline that has passed.
  virtual ~HttpServer() = default;

  /// The port bound.
  virtual int port() const = 0;
  /// Connections open.
  virtual int64_t num_connections() const = 0;
  /// Requests that wait for one of the handlers' threads.
  virtual int64_t num_waiting() const = 0;

  /// From now on connections are closed after the answer that they wait for, and idle ones at once; requests
  /// that are still arriving get 503. New connections are still accepted, for an answer that says why nothing
  /// is served.
  virtual void Drain() = 0;

  /// Accepts nothing more, waits for running answers until `deadline`, closes what is left, and waits for its
  /// end.
  virtual void Shutdown(absl::Time deadline) = 0;
};

}  // namespace kvblend::server
