// Memory for weights. They are streamed, matrix after matrix in the order of their use: in huge pages, or the
// processor would miss its TLB at every other block, and without gaps, so that what is fetched ahead of the
// end of one is the beginning of the next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::kernels {

/// Shared ownership of a part of a slab, whose memory is freed with the last part.
using WeightBytes = std::shared_ptr<std::byte[]>;

/// Thread-safe. Parts may outlive the arena.
class WeightArena {
 public:
  /// Slabs are memory, or, where `folder` is given, mapped files in it that have no name: under pressure the
  /// operating system writes their pages out and takes them away, those first that are not used, and reads
  /// them again when they are.
  explicit WeightArena(std::string folder = "") : folder_(std::move(folder)) {}

  /// `bytes` > 0, aligned to 64 and uninitialised. kResourceExhausted when there is no memory, or no room in
  /// the folder; the code of the system's error when no file can be made there.
  absl::StatusOr<WeightBytes> Allocate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::string folder_;
  absl::Mutex mutex_;
  WeightBytes slab_ ABSL_GUARDED_BY(mutex_);
  int64_t free_begin_ ABSL_GUARDED_BY(mutex_) = 0, free_end_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t allocated_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes of all slabs so far
};

}  // namespace kvblend::kernels
