// Byte streams to Redis nodes, as the client sees them: the seam under which tests put networks that fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace kvblend::store::redis {

struct Endpoint {
  std::string host;  // name, IPv4 or IPv6 address, without brackets
  uint16_t port = 0;

  std::string ToString() const;  // "host:port", "[v6]:port"
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

/// "host:port" or "[v6]:port". kInvalidArgument naming the text, without what a URL has before an '@'.
absl::StatusOr<Endpoint> ParseEndpoint(std::string_view text);
/// "host:port[,host:port...]", at least one.
absl::StatusOr<std::vector<Endpoint>> ParseEndpoints(std::string_view text);

/// Used by one thread at a time. Destruction closes it.
class Connection {
 public:
  virtual ~Connection() = default;

  /// Waits for bytes: at least 1, at most buffer.size() of them. kDeadlineExceeded: none came by `deadline`;
  /// one may try again. kUnavailable: closed or reset; otherwise what is wrong with the stream.
  virtual absl::StatusOr<size_t> Read(absl::Span<std::byte> buffer, absl::Time deadline) = 0;

  /// Hands over all of `bytes`. After an error nothing is known of how many went: close it.
  virtual absl::Status Write(absl::Span<const std::byte> bytes, absl::Time deadline) = 0;
};

/// Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  /// kDeadlineExceeded, kUnavailable; kUnauthenticated: who answers can't prove to be `endpoint`.
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(const Endpoint& endpoint,
                                                              absl::Time deadline) = 0;
};

/// Connects over TCP, to the first of the host's addresses that answers. Looking a name up happens on a
/// thread of its own, so that a name server that does not answer holds nobody up beyond the deadline.
std::unique_ptr<Transport> MakeSocketTransport();

struct TlsOptions {
  std::string ca_path = {};           // PEM; empty: the system's certificate authorities
  std::string certificate_path = {};  // PEM chain that this client shows, with its key; both or neither
  std::string key_path = {};
  /// What the nodes' certificates must be for; empty: each node's own host name or address. For clusters
  /// whose nodes announce addresses that their certificates do not name.
  std::string server_name = {};
};

/// TLS 1.2 or newer; whoever answers must show a certificate of the authority for the name, or Connect fails.
/// kInvalidArgument: a file can't be used, naming it. `inner` is what carries the bytes.
absl::StatusOr<std::unique_ptr<Transport>> MakeTlsTransport(const TlsOptions& options,
                                                            std::unique_ptr<Transport> inner);

}  // namespace kvblend::store::redis
