// Time on the device, for benchmarks: kernels/cuda/runtime/stopwatch_cuda.cc is the hardware's,
// tests/cuda_emulation/stopwatch.cc the emulated one. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/launch.h"

namespace kvblend::kernels::cuda {

/// Two points on a stream.
class Stopwatch {
 public:
  static absl::StatusOr<std::unique_ptr<Stopwatch>> Create();
  virtual ~Stopwatch() = default;
  virtual absl::Status Start(StreamHandle stream) = 0;
  virtual absl::Status Stop(StreamHandle stream) = 0;
  /// From Start to Stop on the device. REQUIRES: the stream has been synchronised since.
  virtual absl::StatusOr<double> Seconds() = 0;
};

/// Both in device memory.
absl::Status EnqueueDeviceCopy(StreamHandle stream, void* target, const void* source, int64_t bytes);

}  // namespace kvblend::kernels::cuda
