// The calls as a server at some address answers them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/calls/calls.h"

namespace kvblend::server {

/// Where a server is, and how it is spoken to. Paths are of PEM files.
struct GrpcTarget {
  std::string address;                    // "host:port", or what else gRPC resolves
  std::string api_key = {};               // KVBLEND_API_KEY, shown with every call; empty: none is
  std::string tls_ca_path = {};           // who may have signed the server's certificate; empty: no TLS
  std::string tls_certificate_path = {};  // the client's own, for servers that want one; with its key
  std::string tls_key_path = {};
  absl::Duration unary_timeout = absl::Seconds(30);  // of calls that are no streams
};

/// Connects at the first call. CallerContext::client is not used: the server tells clients apart by itself.
/// The calls' errors carry the server's code and message, and when to try again, where the server says so
/// (base/retry_delay.h); kUnavailable, naming the address, when it can't be reached.
/// kDeadlineExceeded for a call that is no stream names it as well, the call and the time. kInvalidArgument
/// for a file that can't be read, by its flag, and for a key that no header can carry, which it leaves out.
absl::StatusOr<std::shared_ptr<Calls>> MakeGrpcCalls(const GrpcTarget& target);

}  // namespace kvblend::server
