// Memory of batch plans, used again and again: a decode step makes a plan, and neither allocating nor waiting
// for the device is for every step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/runtime/memory.h"

namespace kvblend::kernels::cuda {

/// A plan's arrays in page-locked host memory, and their copy on the device. Used by one plan at a time.
class PlanMemory {
 public:
  static absl::StatusOr<std::unique_ptr<PlanMemory>> Allocate(int64_t bytes);
  ~PlanMemory();
  PlanMemory(const PlanMemory&) = delete;
  PlanMemory& operator=(const PlanMemory&) = delete;

  /// Filled by the host before the first MakeReady.
  unsigned char* host() const { return host_; }
  const unsigned char* device() const { return static_cast<const unsigned char*>(device_->data()); }
  int64_t size_bytes() const { return device_->size_bytes(); }

  /// What is enqueued on `stream` from now on finds `bytes` bytes on the device. Thread-safe.
  absl::Status MakeReady(const DeviceStream& stream, int64_t bytes);
  /// Called when nothing more will be enqueued that reads the arrays.
  void EndUse();
  /// Whether all that was enqueued before EndUse is done.
  bool IsIdle();

 private:
  explicit PlanMemory(std::unique_ptr<DeviceBuffer> device) : device_(std::move(device)) {}

  std::unique_ptr<DeviceBuffer> device_;
  unsigned char* host_ = nullptr;
  EventHandle copied_ = nullptr;
  absl::Mutex mutex_;
  std::vector<std::shared_ptr<LivingStream>> users_ ABSL_GUARDED_BY(mutex_);  // since the arrays were filled
  std::vector<EventHandle> ends_ ABSL_GUARDED_BY(mutex_);                     // of their use; made once
};

/// Thread-safe. Must outlive what it gives out.
class PlanMemoryPool {
 public:
  /// At least `bytes`. Errors name `PlanBatch`.
  absl::StatusOr<std::unique_ptr<PlanMemory>> Take(int64_t bytes);
  void Return(std::unique_ptr<PlanMemory> memory);

 private:
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<PlanMemory>> returned_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvblend::kernels::cuda
