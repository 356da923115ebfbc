// What gRPC's connections may take. Plain data, for the flags too.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace kvblend::server {

struct GrpcConnectionLimits {
  int32_t max_concurrent_streams =
      256;                         // calls at once per connection; more wait for their turn at the client
  int32_t max_connections = 1024;  // one more is closed
  int64_t max_header_bytes = 16 << 10;                   // metadata of one call: else RESOURCE_EXHAUSTED
  absl::Duration handshake_timeout = absl::Seconds(30);  // until the client speaks HTTP/2, or it is closed
  absl::Duration idle_timeout = absl::Seconds(300);      // without a call: told to go
  // What of all answers may wait for their readers, half of it of a single stream: else the one that has most
  // is ended.
  int64_t max_unsent_bytes = int64_t{512} << 20;
  absl::Duration write_timeout =
      absl::Seconds(30);  // for an answer, or a message of a stream, to be taken: else the call is ended
};

}  // namespace kvblend::server
