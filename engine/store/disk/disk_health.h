// Whether the disk works, said once whenever it changes. Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::store::internal {

/// Thread-safe. Reading and writing have one each: a disk that was mounted read-only fails and works at once.
class DiskHealth {
 public:
  enum class State : uint8_t { kWorking, kFull, kFailing };

  /// what: "reading from" or "writing to"
  DiskHealth(std::string what, std::string folder) : what_(std::move(what)), folder_(std::move(folder)) {}

  /// The outcome of an operation. Logs one line when it means another state than the last one.
  void Report(const absl::Status& status);
  State state() const {
    absl::MutexLock lock(&mutex_);
    return state_;
  }

 private:
  const std::string what_;
  const std::string folder_;
  mutable absl::Mutex mutex_;
  State state_ ABSL_GUARDED_BY(mutex_) = State::kWorking;
  int64_t num_failures_ ABSL_GUARDED_BY(mutex_) = 0;  // since it last worked
};

}  // namespace kvblend::store::internal
