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

/// "host:port" or "[v6]:port". kInvalidArgument naming the text.
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

}  // namespace kvblend::store::redis
