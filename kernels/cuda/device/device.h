// The one header that kernels include: everything they know of the machine. It is the hardware
// (device_nvcc.h), unless the build defines KVBLEND_DEVICE_HEADER as the path of another header that offers
// the same, which is how kernels run over an emulated device. docs/cuda-backend.md tells how to write
// kernels.
//
//   KVBLEND_KERNEL(threads, blocks)                in place of `__global__ void __launch_bounds__(...)`
//   KVBLEND_DEVICE                                 in front of device functions
//   KVBLEND_UNROLL                                 in front of loops that index registers
//   ThreadIndex, BlockThreads, BlockX, BlockY,
//   BlockZ, GridX, GridZ, Lane, Warp               where the calling thread stands
//   SyncThreads, SyncWarp                          all threads of the block or the warp take part, always
//   Shuffle, ShuffleXor, ShuffleUp, Ballot         likewise all 32 lanes
//   SharedArena, SharedArray<T>                    the only way to shared memory
//   CopyAsync16, CopyAsyncCommit, CopyAsyncWait    cp.async of 16 bytes, or of zeros
//   LoadMatrix4, LoadMatrix4Transposed             ldmatrix .x4 of 8x8 16-bit matrices
//   MmaBf16, MmaF16                                mma.sync m16n8k16 with fp32 accumulators
//   Load128, Store128                              16 bytes of global memory at once
//   StoreShared128                                 16 bytes of shared memory at once
//   AddRn, SubRn, MulRn, DivRn (float, double),
//   SqrtRn, FmaRn (float)                          rounded as written: no compiler contracts them, so all
//                                                  give the same bits
//   MaxNumber                                      the larger one, or the one that is a number
//   Exp2, Log2, Exp, RoundToInt                    2^x (fast), log2, e^x (accurate); ties round to even
//   Tanh, TanhFast                                 tanh, accurate, and off by 2^-22 at most
//   ToBf16, FromBf16, ToF16, FromF16,
//   PackBf16, PackF16                              round to nearest even
//   FloatBits, FloatFromBits, DoubleFromBits,
//   FirstSet, CountBits, MulHigh                   of integers and bit patterns
//   KVBLEND_HARDWARE_E4M3                          whether the device converts E4M3 by itself;
//                                                  kernels/cuda/device/e4m3.h converts it everywhere
//   Launch<Kernel>(stream, shape, params)          from host code
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch.h"

namespace kvblend::kernels::cuda {

/// 16 bytes, as one register quadruple.
struct alignas(16) Bytes16 {
  uint32_t words[4];
};

}  // namespace kvblend::kernels::cuda

#ifdef KVBLEND_DEVICE_HEADER
#include KVBLEND_DEVICE_HEADER
#else
#include "kernels/cuda/device/device_nvcc.h"
#endif

namespace kvblend::kernels::cuda {

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
