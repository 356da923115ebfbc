// Waiting for stored KV, and giving up when the request is cancelled or late.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/store/chunk_handle.h"

namespace kvblend::blend {

/// OK, or why to stop. Asked once per layer and, while waiting, every kPatience.
using KeepGoing = absl::FunctionRef<absl::Status()>;

inline constexpr absl::Duration kPatience = absl::Milliseconds(20);
/// How long a prompt waits for stored KV before it gives up its turn.
inline constexpr absl::Duration kTurnPatience = absl::Milliseconds(1);

/// store::ChunkHandle::AcquireLayer, for as long as it takes. Errors: the entry's, keep_going's.
inline absl::StatusOr<store::LayerKv> AcquireLayer(const store::ChunkHandle& entry, int32_t layer,
                                                   KeepGoing keep_going) {
  while (true) {
    absl::StatusOr<store::LayerKv> kv = entry.AcquireLayer(layer, absl::Now() + kPatience);
    if (kv.status().code() != absl::StatusCode::kDeadlineExceeded) return kv;
    if (absl::Status s = keep_going(); !s.ok()) return s;
  }
}

}  // namespace kvblend::blend
