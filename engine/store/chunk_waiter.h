// A caller's place in the queue for a chunk that someone else computes. Private to this folder.
#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/notification.h"
#include "engine/store/chunk_entry.h"

namespace kvblend::store::internal {

struct Waiter {
  // Guarded by the store's mutex.
  bool resolved = false;
  Entry* entry =
      nullptr;  // when resolved: the entry, with a handle counted for this waiter; null: the duty is its
  absl::AnyInvocable<void()> callback;

  absl::Notification ready;  // follows `resolved`, notified without the lock
};

}  // namespace kvblend::store::internal
