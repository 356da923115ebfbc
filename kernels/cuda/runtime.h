// The thin seam between the backend and the CUDA runtime, so that all host code above it also runs over the
// emulator: kernels/cuda/runtime_cuda.cc is the hardware's, tests/cuda_emulation/runtime.cc the emulated one;
// a program links one of them. All functions are thread-safe; one stream is used by one thread at a time.
//
// Streams run behind the host in both. Errors: kResourceExhausted when device memory is out, kInternal with
// the runtime's own words otherwise.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/launch.h"

namespace kvblend::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int num_multiprocessors = 0;
  int64_t memory_bytes = 0;
};

/// Opens the first device that is visible. kFailedPrecondition when there is none that kernels can run on
/// (compute capability below 8.0, no driver).
absl::StatusOr<DeviceInfo> OpenDevice();

/// Aligned to 256 bytes, uninitialised. `bytes` above 0.
absl::StatusOr<void*> DeviceAllocate(int64_t bytes);
/// Waits for everything that was enqueued before.
void DeviceFree(void* data);

absl::StatusOr<StreamHandle> CreateDeviceStream();
void DestroyDeviceStream(StreamHandle stream);
/// Waits; returns the first error of anything enqueued since the last call.
absl::Status SynchronizeStream(StreamHandle stream);

/// `source` may be changed when the call has returned, unless it is pinned memory.
absl::Status EnqueueCopyFromHost(StreamHandle stream, void* target, const void* source, int64_t bytes);
/// `target` holds the bytes after SynchronizeStream.
absl::Status EnqueueCopyToHost(StreamHandle stream, void* target, const void* source, int64_t bytes);
absl::Status EnqueueZero(StreamHandle stream, void* target, int64_t bytes);

/// Whether kernels can be given this address: memory of DeviceAllocate.
bool IsDeviceMemory(const void* data);

/// OK, or kInternal naming the kernel.
absl::Status StatusOf(LaunchError error, absl::string_view kernel);

}  // namespace kvblend::kernels::cuda
