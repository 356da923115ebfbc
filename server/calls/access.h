// Who may make which calls. The transports ask at the beginning of each call, and make the call on the Calls
// that they get.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/calls/calls.h"

namespace kvblend::server {

/// Thread-safe.
class Access {
 public:
  virtual ~Access() = default;

  /// The calls that `authorization` allows, which is a header's value such as "Bearer KEY", or empty. They
  /// are for one call, and valid as long as they are held. kUnauthenticated: no such key. kResourceExhausted:
  /// its tenant has called too often.
  virtual absl::StatusOr<std::shared_ptr<Calls>> Admit(std::string_view authorization) = 0;

  /// The tenant whose key it is; kUnauthenticated: no such key. Quick, and counts against no limit, so that
  /// it can be asked before anything of a request is received that costs memory.
  virtual absl::StatusOr<std::string> TenantOf(std::string_view authorization) const = 0;
};

}  // namespace kvblend::server
