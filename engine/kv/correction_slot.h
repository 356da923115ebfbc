// The learned correction in force, which may be replaced while prompts run.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/kv/learned_correction.h"

namespace kvblend::kv {

/// Thread-safe. A prompt takes the correction once and keeps it to its end.
class CorrectionSlot {
 public:
  /// Null: stored KV is placed as it is.
  std::shared_ptr<const LoadedCorrection> Get() const {
    absl::MutexLock lock(&mutex_);
    return correction_;
  }
  CorrectionSlot& operator=(std::shared_ptr<const LoadedCorrection> correction) {
    absl::MutexLock lock(&mutex_);
    correction_.swap(correction);  // the old one goes when the lock has been let go
    return *this;
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const LoadedCorrection> correction_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::kv
