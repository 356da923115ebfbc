// What has become of a corpus's chunks once all of them were sent.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvblend/v1/admin.pb.h"
#include "server/calls/calls.h"
#include "server/cli/precompute/call_gate.h"

namespace kvblend::server::cli {

struct StoredCheck {
  int64_t missing = 0;      // stored nowhere
  int64_t not_durable = 0;  // stored, but not on disk, where the server has one for chunks

  int64_t total() const { return missing + not_durable; }
};

/// Asks the store for these chunks of a namespace. `has_disk`: the server has one for chunks.
absl::StatusOr<StoredCheck> CheckStored(Calls& calls, CallGate& gate, const std::string& chunk_namespace,
                                        const std::unordered_set<std::string>& keys, bool has_disk);

/// kUnavailable, saying how many of `chunks` are not where they should be and, as far as `info` tells, why;
/// OK when all are. `bytes` is what all of them take.
absl::Status Explain(const StoredCheck& check, int64_t chunks, int64_t bytes,
                     const v1::GetInfoResponse& info);

}  // namespace kvblend::server::cli
