#include "kernels/cpu/amx/tiles.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/cpu/amx/instructions.h"

namespace kvblend::kernels {
namespace {

struct CpuId {
  CpuId(uint32_t leaf, uint32_t subleaf) { present = __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d) != 0; }
  bool present;
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

bool ProcessorHasTiles() {
  constexpr uint32_t kBf16 = 1u << 22, kTile = 1u << 24;  // of EDX
  const CpuId features(7, 0);
  if (!features.present || (features.d & kBf16) == 0 || (features.d & kTile) == 0) return false;
  const CpuId palette(0x1D, 1);
  return palette.present && palette.b >> 16 >= AmxConfig::kNumTiles &&
         (palette.b & 0xFFFF) >= AmxConfig::kMaxRowBytes && (palette.c & 0xFFFF) >= AmxConfig::kMaxRows;
}

// Linux's arch_prctl(2), from 5.16 on: a process gets the 8 KiB of tiles' contents per thread when it asks.
bool KernelKeepsTiles() {
  constexpr int kRequestPermission = 0x1023, kPermissions = 0x1022;
  constexpr int kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return false;
  uint64_t permissions = 0;
  return syscall(SYS_arch_prctl, kPermissions, &permissions) == 0 && (permissions >> kTileData & 1) != 0;
}

}  // namespace

bool RequestAmx() {
  static const bool usable = ProcessorHasTiles() && KernelKeepsTiles();
  return usable;
}

}  // namespace kvblend::kernels
#endif  // x86-64
