// Time on the device: stopwatch_cuda.cc is the hardware's, stopwatch_emulated.cc the emulated one; a program
// links one of them. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/launch.h"

namespace kvblend::gpu_bench {

using kernels::cuda::StreamHandle;

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

/// Version of the driver as CUDA counts: 13000 is 13.0. 0 when there is none.
int DriverVersion();

}  // namespace kvblend::gpu_bench
