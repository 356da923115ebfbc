// Who may make which calls. The transports ask at the beginning of each call, and make it of what they get.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/calls/calls.h"

namespace kvblend::server {

/// Thread-safe.
class Access {
 public:
  virtual ~Access() = default;

  /// The calls of whoever shows `authorization`, which is a header's value such as "Bearer KEY", or empty. Valid as long as
  /// they are held, for one call. kUnauthenticated; kResourceExhausted when that one has called too often.
  virtual absl::StatusOr<std::shared_ptr<Calls>> Admit(std::string_view authorization) = 0;
};

}  // namespace kvblend::server
