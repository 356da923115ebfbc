// The instructions of AMX that tiles use (products.h). Assembly, because GCC 12's intrinsics don't tell
// the compiler that they read and write memory: it moves the bytes of a configuration, or what a tile is
// loaded from, past them. All of these stay in order with each other and with every access to memory.
//
// A thread has eight tiles of up to 16 rows of 64 bytes. Only for x86-64.
#pragma once

#include <cstdint>

namespace kvblend::kernels {

/// What LDTILECFG reads.
struct alignas(64) AmxConfig {
  static constexpr int kNumTiles = 8;
  static constexpr int64_t kMaxRows = 16, kMaxRowBytes = 64;

  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // per tile; a tile is unused where both are 0
  uint8_t rows[16] = {};
};
static_assert(sizeof(AmxConfig) == 64);

struct AmxInstructions {
  /// Gives the calling thread's tiles their sizes and sets them to zero.
  static void Configure(const AmxConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config) : "memory"); }
  /// The thread's tiles hold nothing any more, which makes switching threads cheap again.
  static void Release() { asm volatile("tilerelease" ::: "memory"); }

  template <int kTile>
  static void Zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(kTile) : "memory");
  }
  /// Rows are `stride` bytes apart.
  template <int kTile>
  static void Load(const void* rows, int64_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  /// The same for rows that are not read again soon: they should not take room in the first-level cache.
  template <int kTile>
  static void LoadOnce(const void* rows, int64_t stride) {
    asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows), "r"(stride) : "memory");
  }
  template <int kTile>
  static void Store(void* rows, int64_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(rows), "r"(stride) : "memory");
  }

  /// C[m][n] += sum over k of A[m][2k] * B[k][2n] + A[m][2k + 1] * B[k][2n + 1]. A, B: bf16; C: f32.
  /// Subnormal numbers count as zero.
  template <int kC, int kA, int kB>
  static void AddProducts() {
    static_assert(kA != kB && kA != kC && kB != kC);
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB) : "memory");
  }
};

}  // namespace kvblend::kernels
