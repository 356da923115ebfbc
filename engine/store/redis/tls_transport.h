// TLS over any other transport.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

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
