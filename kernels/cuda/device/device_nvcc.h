// kernels/cuda/device/device.h on the hardware: sm_80 and newer. Include device.h, not this.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.h"

#define KVBLEND_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define KVBLEND_UNROLL _Pragma("unroll")
#define KVBLEND_DEVICE __device__ __forceinline__

namespace kvblend::kernels::cuda {

KVBLEND_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
KVBLEND_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }
KVBLEND_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
KVBLEND_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
KVBLEND_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
KVBLEND_DEVICE int GridX() { return static_cast<int>(gridDim.x); }
KVBLEND_DEVICE int GridZ() { return static_cast<int>(gridDim.z); }
KVBLEND_DEVICE int Lane() { return static_cast<int>(threadIdx.x % kWarpSize); }
KVBLEND_DEVICE int Warp() { return static_cast<int>(threadIdx.x / kWarpSize); }

KVBLEND_DEVICE void SyncThreads() { __syncthreads(); }
KVBLEND_DEVICE void SyncWarp() { __syncwarp(); }

template <typename T>
KVBLEND_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(0xFFFFFFFFu, value, lane);
}
template <typename T>
KVBLEND_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
}
template <typename T>
KVBLEND_DEVICE T ShuffleUp(T value, int delta) {
  return __shfl_up_sync(0xFFFFFFFFu, value, delta);
}
KVBLEND_DEVICE uint32_t Ballot(bool predicate) { return __ballot_sync(0xFFFFFFFFu, predicate); }
KVBLEND_DEVICE int FirstSet(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }

/// Dynamic shared memory, handed out piece by piece; every thread takes the same pieces.
template <typename T>
class SharedArray {
 public:
  SharedArray() = default;
  KVBLEND_DEVICE explicit SharedArray(T* data) : data_(data) {}
  KVBLEND_DEVICE T& operator[](int index) const { return data_[index]; }
  KVBLEND_DEVICE SharedArray Slice(int begin, int) const { return SharedArray(data_ + begin); }
  KVBLEND_DEVICE uint32_t Address(int index) const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(data_ + index));
  }

 private:
  T* data_ = nullptr;
};

extern __shared__ __align__(128) unsigned char kvblend_shared_bytes[];

class SharedArena {
 public:
  template <typename T>
  KVBLEND_DEVICE SharedArray<T> Take(int count) {
    T* data = reinterpret_cast<T*>(kvblend_shared_bytes + used_);
    used_ += static_cast<int>((count * sizeof(T) + 15) / 16 * 16);
    return SharedArray<T>(data);
  }

 private:
  int used_ = 0;
};

/// Copies the 16 bytes at `source`, aligned to 16, or zeros where it is not `valid`, to `target[index]`.
KVBLEND_DEVICE void CopyAsync16(SharedArray<uint16_t> target, int index, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target.Address(index)), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}
KVBLEND_DEVICE void CopyAsyncCommit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until all but the latest `kGroups` groups of this thread have arrived.
template <int kGroups>
KVBLEND_DEVICE void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kGroups) : "memory");
}

/// Each lane names one row of 8 elements, aligned to 16 bytes: lanes 8m .. 8m+7 the rows of matrix m, which
/// becomes out[m].
KVBLEND_DEVICE void LoadMatrix4(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(matrix.Address(index))
               : "memory");
}
KVBLEND_DEVICE void LoadMatrix4Transposed(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(matrix.Address(index))
               : "memory");
}

/// d += a b: a [16, 16] row by row, b [16, 8] column by column, d [16, 8].
KVBLEND_DEVICE void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
KVBLEND_DEVICE void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

KVBLEND_DEVICE Bytes16 Load128(const void* address) {
  const uint4 value = *static_cast<const uint4*>(address);
  return {{value.x, value.y, value.z, value.w}};
}
KVBLEND_DEVICE void Store128(void* address, const Bytes16& value) {
  *static_cast<uint4*>(address) = make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}

KVBLEND_DEVICE void StoreShared128(SharedArray<uint16_t> array, int index, const Bytes16& value) {
  Store128(&array[index], value);
}

KVBLEND_DEVICE float AddRn(float a, float b) { return __fadd_rn(a, b); }
KVBLEND_DEVICE float SubRn(float a, float b) { return __fsub_rn(a, b); }
KVBLEND_DEVICE float MulRn(float a, float b) { return __fmul_rn(a, b); }
KVBLEND_DEVICE float DivRn(float a, float b) { return __fdiv_rn(a, b); }
KVBLEND_DEVICE float SqrtRn(float a) { return __fsqrt_rn(a); }
KVBLEND_DEVICE float FmaRn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
KVBLEND_DEVICE double AddRn(double a, double b) { return __dadd_rn(a, b); }
KVBLEND_DEVICE double SubRn(double a, double b) { return __dsub_rn(a, b); }
KVBLEND_DEVICE double MulRn(double a, double b) { return __dmul_rn(a, b); }
KVBLEND_DEVICE double DivRn(double a, double b) { return __ddiv_rn(a, b); }
KVBLEND_DEVICE float RoundToInt(float a) { return rintf(a); }
/// The one that is a number, where the other is not.
KVBLEND_DEVICE float MaxNumber(float a, float b) { return fmaxf(a, b); }
KVBLEND_DEVICE float Exp(float a) { return expf(a); }
KVBLEND_DEVICE float Tanh(float a) { return tanhf(a); }
KVBLEND_DEVICE float Log2(float a) { return log2f(a); }
KVBLEND_DEVICE float Exp2(float a) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(a));
  return result;
}
// 1 - 2 / (1 + e^(2 a)): what overflows, or is rounded to 0, gives 1 and -1.
KVBLEND_DEVICE float TanhFast(float a) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + Exp2(2.88539008f * a)));
  return 1.0f - 2.0f * inverse;
}
KVBLEND_DEVICE uint32_t FloatBits(float a) { return __float_as_uint(a); }
KVBLEND_DEVICE float FloatFromBits(uint32_t a) { return __uint_as_float(a); }
KVBLEND_DEVICE double DoubleFromBits(uint64_t a) { return __longlong_as_double(static_cast<long long>(a)); }
KVBLEND_DEVICE int CountBits(uint32_t a) { return __popc(a); }
KVBLEND_DEVICE uint32_t MulHigh(uint32_t a, uint32_t b) { return __umulhi(a, b); }

KVBLEND_DEVICE float FromBf16(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }
KVBLEND_DEVICE uint16_t ToBf16(float value) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
KVBLEND_DEVICE float FromF16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
KVBLEND_DEVICE uint16_t ToF16(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
/// Two values in one register, `low` in the low half.
KVBLEND_DEVICE uint32_t PackBf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
KVBLEND_DEVICE uint32_t PackF16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define KVBLEND_HARDWARE_E4M3 1
/// Two E4M3 to two f16, exactly. The first is in the low bits of either.
KVBLEND_DEVICE uint32_t E4M3PairToF16(uint16_t codes) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
  return halves;
}
/// To nearest even, at most 448; 0x7F for NaN.
KVBLEND_DEVICE uint16_t F32PairToE4M3(float low, float high) {
  uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}
#else
#define KVBLEND_HARDWARE_E4M3 0
#endif

/// Enqueues a kernel, which takes one parameter by value.
template <auto Kernel, typename Params>
LaunchError Launch(StreamHandle stream, const LaunchShape& shape, const Params& params) {
  static_assert(std::is_same_v<decltype(Kernel), void (*)(Params)>);
  const void* function = reinterpret_cast<const void*>(Kernel);
  if (shape.shared_bytes > 48 * 1024) {
    static const cudaError_t granted =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
    if (granted != cudaSuccess) return {static_cast<int>(granted)};
  }
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&params))};
  const dim3 grid(static_cast<unsigned>(shape.blocks_x), static_cast<unsigned>(shape.blocks_y),
                  static_cast<unsigned>(shape.blocks_z));
  const dim3 block(static_cast<unsigned>(shape.threads));
  return {static_cast<int>(cudaLaunchKernel(function, grid, block, arguments, shape.shared_bytes,
                                            reinterpret_cast<cudaStream_t>(stream)))};
}

}  // namespace kvblend::kernels::cuda
