// kernels/cuda/device/device.h without a GPU: the same functions over the emulator's executor. Include
// kernels/cuda/device/device.h, not this.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/cuda/device/launch.h"
#include "kernels/host/float_convert.h"
#include "tests/cuda_emulation/executor.h"
#include "tests/cuda_emulation/failure.h"
#include "tests/cuda_emulation/launcher.h"

#define KVBLEND_KERNEL(threads, blocks) void
#define KVBLEND_UNROLL
#define KVBLEND_DEVICE inline

namespace kvblend::kernels::cuda {

using cuda_emulation::Site;

inline cuda_emulation::Executor& Emulator() { return cuda_emulation::Executor::Running(); }

KVBLEND_DEVICE int ThreadIndex() { return Emulator().thread().index; }
KVBLEND_DEVICE int BlockThreads() { return Emulator().num_threads(); }
KVBLEND_DEVICE int BlockX() { return static_cast<int>(Emulator().block().x); }
KVBLEND_DEVICE int BlockY() { return static_cast<int>(Emulator().block().y); }
KVBLEND_DEVICE int BlockZ() { return static_cast<int>(Emulator().block().z); }
KVBLEND_DEVICE int GridX() { return static_cast<int>(Emulator().shape().blocks_x); }
KVBLEND_DEVICE int GridZ() { return static_cast<int>(Emulator().shape().blocks_z); }
KVBLEND_DEVICE int Lane() { return ThreadIndex() % kWarpSize; }
KVBLEND_DEVICE int Warp() { return ThreadIndex() / kWarpSize; }

KVBLEND_DEVICE void SyncThreads(Site site = Site::Current()) { Emulator().SyncThreads(site); }
KVBLEND_DEVICE void SyncWarp(Site site = Site::Current()) {
  Emulator().WarpCollective(cuda_emulation::Collective::kSyncWarp, site, nullptr, 0);
}

template <typename T>
KVBLEND_DEVICE T Shuffle(T value, int lane, Site site = Site::Current()) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  const auto* slots =
      Emulator().WarpCollective(cuda_emulation::Collective::kShuffle, site, &value, sizeof(value));
  std::memcpy(&value, slots[lane & (kWarpSize - 1)].bytes, sizeof(value));
  return value;
}
template <typename T>
KVBLEND_DEVICE T ShuffleXor(T value, int mask, Site site = Site::Current()) {
  return Shuffle(value, Lane() ^ mask, site);
}
template <typename T>
KVBLEND_DEVICE T ShuffleUp(T value, int delta, Site site = Site::Current()) {
  return Shuffle(value, Lane() >= delta ? Lane() - delta : Lane(), site);
}
KVBLEND_DEVICE uint32_t Ballot(bool predicate, Site site = Site::Current()) {
  const auto* slots = Emulator().WarpCollective(cuda_emulation::Collective::kVote, site, &predicate, 1);
  uint32_t bits = 0;
  for (int lane = 0; lane < kWarpSize; ++lane) bits |= static_cast<uint32_t>(slots[lane].bytes[0]) << lane;
  return bits;
}
KVBLEND_DEVICE int FirstSet(uint32_t bits) { return bits == 0 ? -1 : std::countr_zero(bits); }

/// What SharedArray<T>::operator[] gives: reads and writes are checked and noted.
template <typename T>
class SharedReference {
 public:
  explicit SharedReference(uint32_t offset) : offset_(offset) {}
  SharedReference(const SharedReference&) = default;
  operator T() const {  // NOLINT: stands for a T
    T value;
    auto& emulator = Emulator();
    emulator.shared().Read(emulator.thread().index, emulator.warp_epoch(), offset_, &value, sizeof(T));
    return value;
  }
  const SharedReference& operator=(const T& value) const {
    auto& emulator = Emulator();
    emulator.shared().Write(emulator.thread().index, emulator.warp_epoch(), offset_, &value, sizeof(T));
    return *this;
  }
  // As between references: copies the value.
  SharedReference& operator=(const SharedReference& other) {
    *this = static_cast<T>(other);
    return *this;
  }
  const SharedReference& operator+=(const T& value) const { return *this = static_cast<T>(*this) + value; }
  const SharedReference& operator*=(const T& value) const { return *this = static_cast<T>(*this) * value; }

 private:
  uint32_t offset_;
};

template <typename T>
class SharedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 2 == 0);

  SharedArray() = default;
  SharedArray(uint32_t offset, int count) : offset_(offset), count_(count) {}

  SharedReference<T> operator[](int index) const { return SharedReference<T>(Address(index, 1)); }
  SharedArray Slice(int begin, int count) const {
    if (begin < 0 || count < 0 || begin > count_ - count) OutOfBounds(begin, count);
    return SharedArray(offset_ + static_cast<uint32_t>(begin * sizeof(T)), count);
  }
  /// The address of elements [index, index + count), in bytes from the beginning of shared memory.
  uint32_t Address(int index, int count) const {
    if (index < 0 || index > count_ - count) OutOfBounds(index, count);
    return offset_ + static_cast<uint32_t>(index * sizeof(T));
  }

 private:
  [[noreturn]] void OutOfBounds(int index, int count) const {
    cuda_emulation::Fail("out of bounds: elements " + std::to_string(index) + " .. " +
                         std::to_string(index + count - 1) + " of a shared array of " +
                         std::to_string(count_));
  }

  uint32_t offset_ = 0;
  int count_ = 0;
};

class SharedArena {
 public:
  template <typename T>
  SharedArray<T> Take(int count) {
    auto& emulator = Emulator();
    const int offset = emulator.thread().shared_taken;
    emulator.thread().shared_taken += static_cast<int>((count * sizeof(T) + 15) / 16 * 16);
    if (emulator.thread().shared_taken > emulator.shared().size()) {
      cuda_emulation::Fail("out of bounds: takes " + std::to_string(emulator.thread().shared_taken) +
                           " bytes of shared memory, the launch gave " +
                           std::to_string(emulator.shared().size()));
    }
    return SharedArray<T>(static_cast<uint32_t>(offset), count);
  }
};

/// Fails when `address` is not a multiple of 16: the device reports a misaligned address.
void CheckAligned16(const char* operation, uintptr_t address);

void CopyAsync16(SharedArray<uint16_t> target, int index, const void* source, bool valid);
KVBLEND_DEVICE void CopyAsyncCommit() { Emulator().CommitCopies(); }
template <int kGroups>
KVBLEND_DEVICE void CopyAsyncWait() {
  Emulator().WaitCopies(kGroups);
}

void LoadMatrix4(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index, Site site = Site::Current());
void LoadMatrix4Transposed(uint32_t (&out)[4], SharedArray<uint16_t> matrix, int index,
                           Site site = Site::Current());
void MmaBf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site = Site::Current());
void MmaF16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Site site = Site::Current());

KVBLEND_DEVICE Bytes16 Load128(const void* address) {
  CheckAligned16("Load128", reinterpret_cast<uintptr_t>(address));
  Bytes16 value;
  std::memcpy(&value, address, 16);
  return value;
}
KVBLEND_DEVICE void Store128(void* address, const Bytes16& value) {
  CheckAligned16("Store128", reinterpret_cast<uintptr_t>(address));
  std::memcpy(address, &value, 16);
}

KVBLEND_DEVICE void StoreShared128(SharedArray<uint16_t> array, int index, const Bytes16& value) {
  const uint32_t offset = array.Address(index, 8);
  CheckAligned16("StoreShared128", offset);
  auto& emulator = Emulator();
  emulator.shared().Write(emulator.thread().index, emulator.warp_epoch(), offset, &value, 16);
}

KVBLEND_DEVICE float AddRn(float a, float b) { return a + b; }
KVBLEND_DEVICE float SubRn(float a, float b) { return a - b; }
KVBLEND_DEVICE float MulRn(float a, float b) { return a * b; }
KVBLEND_DEVICE float DivRn(float a, float b) { return a / b; }
KVBLEND_DEVICE float SqrtRn(float a) { return std::sqrt(a); }
KVBLEND_DEVICE float FmaRn(float a, float b, float c) { return std::fma(a, b, c); }
KVBLEND_DEVICE double AddRn(double a, double b) { return a + b; }
KVBLEND_DEVICE double SubRn(double a, double b) { return a - b; }
KVBLEND_DEVICE double MulRn(double a, double b) { return a * b; }
KVBLEND_DEVICE double DivRn(double a, double b) { return a / b; }
KVBLEND_DEVICE float RoundToInt(float a) { return std::nearbyint(a); }
KVBLEND_DEVICE float MaxNumber(float a, float b) { return std::fmax(a, b); }
KVBLEND_DEVICE float Exp(float a) { return std::exp(a); }
KVBLEND_DEVICE float Exp2(float a) { return std::exp2(a); }
KVBLEND_DEVICE float Tanh(float a) { return std::tanh(a); }
KVBLEND_DEVICE float TanhFast(float a) { return 1.0f - 2.0f * (1.0f / (1.0f + std::exp2(2.88539008f * a))); }
KVBLEND_DEVICE float Log2(float a) { return std::log2(a); }
KVBLEND_DEVICE uint32_t FloatBits(float a) { return std::bit_cast<uint32_t>(a); }
KVBLEND_DEVICE float FloatFromBits(uint32_t a) { return std::bit_cast<float>(a); }
KVBLEND_DEVICE double DoubleFromBits(uint64_t a) { return std::bit_cast<double>(a); }
KVBLEND_DEVICE int CountBits(uint32_t a) { return std::popcount(a); }
KVBLEND_DEVICE uint32_t MulHigh(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

KVBLEND_DEVICE float FromBf16(uint16_t bits) { return Bf16ToF32(bits); }
KVBLEND_DEVICE uint16_t ToBf16(float value) { return F32ToBf16(value); }
KVBLEND_DEVICE float FromF16(uint16_t bits) { return F16ToF32(bits); }
KVBLEND_DEVICE uint16_t ToF16(float value) { return F32ToF16(value); }
KVBLEND_DEVICE uint32_t PackBf16(float low, float high) {
  return uint32_t{F32ToBf16(low)} | uint32_t{F32ToBf16(high)} << 16;
}
KVBLEND_DEVICE uint32_t PackF16(float low, float high) {
  return uint32_t{F32ToF16(low)} | uint32_t{F32ToF16(high)} << 16;
}

#define KVBLEND_HARDWARE_E4M3 0

/// Enqueues a kernel, which takes one parameter by value.
template <auto Kernel, typename Params>
LaunchError Launch(StreamHandle stream, const LaunchShape& shape, const Params& params) {
  static_assert(std::is_same_v<decltype(Kernel), void (*)(Params)>);
  static_assert(std::is_trivially_copyable_v<Params>);
  return cuda_emulation::EnqueueLaunch(stream, shape, cuda_emulation::RegisteredKernel<Kernel>::kEntry,
                                       [params] { Kernel(params); });
}

}  // namespace kvblend::kernels::cuda
