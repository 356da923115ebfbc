// Addresses that TCP listeners are given.
#pragma once

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

}  // namespace kvblend::server
