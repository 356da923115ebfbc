// What tests may ask of the emulated runtime beyond kernels/cuda/runtime.h.
#pragma once

#include <cstdint>

namespace kvblend::cuda_emulation {

/// Allocations beyond this sum fail as on a device whose memory is full. Returns the previous limit.
int64_t SetMemoryLimit(int64_t bytes);
int64_t AllocatedBytes();

}  // namespace kvblend::cuda_emulation
