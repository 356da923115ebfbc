// Memory for weights. They are streamed, matrix after matrix in the order of their use: in huge pages, or the
// processor would miss its TLB at every other block, and without gaps, so that what is fetched ahead of the
// end of one is the beginning of the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::kernels {

/// Shared ownership of a part of a slab, whose memory is freed with the last part.
using WeightBytes = std::shared_ptr<std::byte[]>;

/// Thread-safe. Parts may outlive the arena.
class WeightArena {
 public:
  /// `bytes` > 0, aligned to 64 and uninitialised; null when there is no memory.
  WeightBytes Allocate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  WeightBytes slab_ ABSL_GUARDED_BY(mutex_);
  int64_t free_begin_ ABSL_GUARDED_BY(mutex_) = 0, free_end_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of all slabs so far
};

}  // namespace kvblend::kernels
