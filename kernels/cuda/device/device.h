// The one header that kernels include: everything they know of the machine. Compiled by nvcc it is the
// hardware (kernels/cuda/device/device_nvcc.h); compiled by a host compiler it is an emulation that checks what it
// runs (tests/cuda_emulation/device.h). docs/cuda-backend.md tells how to write a kernel.
//
//   KVBLEND_KERNEL(threads, blocks)  in place of `__global__ void __launch_bounds__(threads, blocks)`
//   KVBLEND_DEVICE                   in front of device functions
//   KVBLEND_UNROLL                   in front of loops that index registers
//   ThreadIndex, BlockThreads, BlockX/Y/Z, GridX, Lane, Warp
//   SyncThreads, SyncWarp            all threads of the block or the warp take part, always
//   Shuffle, ShuffleXor, ShuffleUp, Ballot       likewise all 32 lanes
//   AtomicAdd, AtomicMax             on global memory
//   SharedArena, SharedArray<T>      the only way to shared memory
//   CopyAsync16, CopyAsyncCommit, CopyAsyncWait<n>     cp.async of 16 bytes, the rest filled with zeros
//   LoadMatrix4, LoadMatrix4Transposed                 ldmatrix .x4 of 8x8 16-bit matrices
//   MmaBf16, MmaF16                  mma.sync m16n8k16, fp32 accumulators
//   Load128, Store128                16-byte accesses of global memory
//   LoadShared128, StoreShared128    and of shared memory
//   AddRn .. SqrtRn, FmaRn           rounded as written: never contracted, so equal on every compiler (the
//   first
//                                    four also in double)
//   Exp2, Exp, RoundToInt            2^x (fast), e^x (accurate), to the nearest even integer
//   ToBf16, FromBf16, ToF16, FromF16, PackBf16, PackF16    round to nearest even
//   KVBLEND_HARDWARE_E4M3            whether it converts E4M3 by itself; kernels/cuda/device/e4m3.h does it anywhere
//   Launch<Kernel>(stream, shape, params)           from host code
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"

namespace kvblend::kernels::cuda {

/// 16 bytes, as one register quadruple.
struct alignas(16) Bytes16 {
  uint32_t words[4];
};

}  // namespace kvblend::kernels::cuda

#ifdef __CUDACC__
#include "kernels/cuda/device/device_nvcc.h"
#else
#include "tests/cuda_emulation/device.h"
#endif

namespace kvblend::kernels::cuda {

KVBLEND_DEVICE bool AnyLane(bool predicate) { return Ballot(predicate) != 0; }
KVBLEND_DEVICE bool AllLanes(bool predicate) { return Ballot(predicate) == 0xFFFFFFFFu; }

/// The sum over the warp, in every lane.
template <typename T>
KVBLEND_DEVICE T WarpSum(T value) {
  for (int mask = 16; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}

/// The largest value of the warp, in every lane.
KVBLEND_DEVICE float WarpMax(float value) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const float other = ShuffleXor(value, mask);
    value = other > value ? other : value;
  }
  return value;
}

/// The sum over lanes 0 .. this lane, of whole numbers.
template <typename T>
KVBLEND_DEVICE T WarpInclusiveSum(T value) {
  for (int delta = 1; delta < kWarpSize; delta *= 2) {
    const T other = ShuffleUp(value, delta);
    if (Lane() >= delta) value += other;
  }
  return value;
}

/// The sum over the block, in every thread. `scratch` holds 32 elements; two uses of it need a SyncThreads
/// between them.
KVBLEND_DEVICE float BlockSum(float value, SharedArray<float> scratch) {
  value = WarpSum(value);
  if (Lane() == 0) scratch[Warp()] = value;
  SyncThreads();
  float sum = 0;
  if (Lane() < BlockThreads() / kWarpSize) sum = scratch[Lane()];
  return WarpSum(sum);
}

KVBLEND_DEVICE int Min(int a, int b) { return a < b ? a : b; }
KVBLEND_DEVICE int Max(int a, int b) { return a > b ? a : b; }
KVBLEND_DEVICE float Max(float a, float b) { return a > b ? a : b; }

}  // namespace kvblend::kernels::cuda
