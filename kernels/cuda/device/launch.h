// What kernel sources (compiled by nvcc or, emulated, by the host compiler) and the backend's host code
// share: handles, launch shapes and error codes. No Abseil here, so that nvcc compiles kernels quickly.
#pragma once

#include <cstdint>

namespace kvblend::kernels::cuda {

/// A stream of the runtime below: cudaStream_t, or the emulator's.
struct StreamObject;
using StreamHandle = StreamObject*;

struct LaunchShape {
  int64_t blocks_x = 1;  // up to 2^31 - 1
  int64_t blocks_y = 1;  // up to 65535
  int64_t blocks_z = 1;  // up to 65535
  int threads = 128;     // per block, a multiple of 32 up to 1024
  int shared_bytes = 0;  // dynamic shared memory per block, up to kMaxSharedBytes
};

/// What a block may ask for on every supported architecture: 99 KiB on sm_86, sm_89 and sm_120, 163 KiB and
/// more on others.
inline constexpr int kMaxSharedBytes = 99 * 1024;
inline constexpr int kWarpSize = 32;

/// The runtime's error code of a launch; 0 is success. kernels/cuda/runtime/runtime.h turns it into a status.
struct [[nodiscard]] LaunchError {
  int code = 0;
  bool ok() const { return code == 0; }
};

/// cudaErrorInvalidValue: what launchers return for sizes that their kernels cannot count.
inline constexpr int kInvalidValue = 1;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace kvblend::kernels::cuda
