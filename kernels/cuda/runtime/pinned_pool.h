// Page-locked host memory in blocks that are kept for the next one who asks: locking pages takes the system
// milliseconds, and unlocking them makes the device wait for everything.
#pragma once

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::kernels::cuda {

/// Thread-safe. Whatever was taken must be returned before the pool is destroyed.
class PinnedPool {
 public:
  /// How much may lie unused, in addition to an eighth of what is in use.
  static constexpr int64_t kUnusedBytes = int64_t{256} << 20;

  PinnedPool() = default;
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  /// Aligned to 4096 bytes; null when there is not enough. REQUIRES: bytes > 0
  void* Take(int64_t bytes);
  /// `bytes` as given to Take. REQUIRES: nothing that is still enqueued copies from or to the memory.
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
