// Page-locked host memory in blocks that are kept for the next one who asks: locking pages takes the system
// milliseconds, and unlocking them makes the device wait for everything.
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::kernels::cuda {

/// Thread-safe. All that was taken must have been returned before it goes.
class PinnedPool {
 public:
  /// What may lie unused, besides an eighth of what is in use.
  static constexpr int64_t kUnusedBytes = int64_t{256} << 20;

  PinnedPool() = default;
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// At a multiple of 4096; null when there is none. REQUIRES: bytes > 0
  void* Take(int64_t bytes);
  /// `bytes` as it was taken. Nothing enqueued copies from or to it any more.
  void Return(void* data, int64_t bytes);

 private:
  /// Blocks waste an eighth at most, so that chunks of about the same length share them.
  static int64_t BlockBytes(int64_t bytes);

  absl::Mutex mutex_;
  std::multimap<int64_t, void*> unused_ ABSL_GUARDED_BY(mutex_);  // by size
  int64_t unused_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t used_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvblend::kernels::cuda
