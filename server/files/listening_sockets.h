// The sockets of a server's TCP address, the same for gRPC and HTTP: so that an address means the same to
// both.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/files/descriptor.h"

namespace kvblend::server {

struct ListeningSockets {
  std::vector<Descriptor> sockets;  // non-blocking; at least one
  int port = 0;                     // of them all
};

/// Listens at every address that `host` (a name, or an address without brackets) stands for; port 0: any one
/// that is free at all of them. 0.0.0.0 is IPv4 alone, and :: is both protocols with one socket, or IPv4 if
/// the machine has no IPv6. An address that is not this machine's, as ::1 where there is no IPv6, is left out
/// if there is another one. Any other failure, as a port in use, is one for the whole: a server that answers
/// at some of its addresses would look well, while clients that try another first get somebody else.
/// kUnavailable with the address and what the system says of it; the caller adds whose address it is.
absl::StatusOr<ListeningSockets> ListenOn(const std::string& host, int port);

/// The same for addresses that are known already, each an address without brackets.
absl::StatusOr<ListeningSockets> ListenOnAll(const std::vector<std::string>& addresses, int port);

}  // namespace kvblend::server
