// The fragment layouts of ldmatrix and mma.m16n8k16, derived here from the tables of the PTX ISA, and what
// follows from them: a matrix product from memory to memory. cp.async as well.
#include <cmath>
#include <random>
#include <vector>

#include "kernels/host/float_convert.h"
#include "tests/cuda_emulation/run_kernel.h"

namespace kvblend::kernels::cuda {
namespace {

struct FragmentParams {
  const uint16_t* in;
  uint32_t* out;
};

// Four 8x8 matrices, rows of 8 elements one after the other.
template <bool kTransposed>
KVBLEND_KERNEL(32, 1)
LoadMatrixKernel(FragmentParams p) {
  SharedArena arena;
  SharedArray<uint16_t> matrices = arena.Take<uint16_t>(256);
  for (int i = 0; i < 8; ++i) matrices[Lane() * 8 + i] = p.in[Lane() * 8 + i];
  SyncThreads();
  uint32_t regs[4];
  if constexpr (kTransposed) {
    LoadMatrix4Transposed(regs, matrices, Lane() * 8);
  } else {
    LoadMatrix4(regs, matrices, Lane() * 8);
  }
  for (int m = 0; m < 4; ++m) p.out[Lane() * 4 + m] = regs[m];
}

TEST(CudaEmulationTest, LoadMatrixGivesEachLaneItsPairOfARow) {
  std::vector<uint16_t> in(256);
  for (int i = 0; i < 256; ++i) in[i] = static_cast<uint16_t>(i * 257);
  std::vector<uint32_t> plain(128), transposed(128);
  RunKernel<LoadMatrixKernel<false>>({.threads = 32, .shared_bytes = 512},
                                     FragmentParams{in.data(), plain.data()});
  RunKernel<LoadMatrixKernel<true>>({.threads = 32, .shared_bytes = 512},
                                    FragmentParams{in.data(), transposed.data()});
  const auto element = [&](int m, int row, int col) { return uint32_t{in[m * 64 + row * 8 + col]}; };
  // "Each thread receives a fragment of a row": lane l has elements 2 (l mod 4) and one more of row l div 4.
  int lane = 0;
  for (int row = 0; row < 8; ++row) {
    for (int pair = 0; pair < 4; ++pair, ++lane) {
      for (int m = 0; m < 4; ++m) {
        EXPECT_EQ(plain[lane * 4 + m], element(m, row, 2 * pair) | element(m, row, 2 * pair + 1) << 16);
        EXPECT_EQ(transposed[lane * 4 + m], element(m, 2 * pair, row) | element(m, 2 * pair + 1, row) << 16);
      }
    }
  }
}

struct MmaParams {
  const uint32_t* a;
  const uint32_t* b;
  float* d;
};

template <bool kBf16>
KVBLEND_KERNEL(32, 1)
MmaKernel(MmaParams p) {
  uint32_t a[4];
  float d[4];
  for (int i = 0; i < 4; ++i) a[i] = p.a[Lane() * 4 + i];
  for (int i = 0; i < 4; ++i) d[i] = p.d[Lane() * 4 + i];
  if constexpr (kBf16) {
    MmaBf16(d, a, p.b[Lane() * 2], p.b[Lane() * 2 + 1]);
  } else {
    MmaF16(d, a, p.b[Lane() * 2], p.b[Lane() * 2 + 1]);
  }
  for (int i = 0; i < 4; ++i) p.d[Lane() * 4 + i] = d[i];
}

// The ISA's tables, index i of the fragment: row and column of a_i, b_i and c_i in lane `lane`.
struct Element {
  int row, col;
};
Element OfA(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  const bool upper = (0 <= i && i < 2) || (4 <= i && i < 6);
  return {upper ? group : group + 8, in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Element OfB(int lane, int i) { return {lane % 4 * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane >> 2}; }
Element OfC(int lane, int i) { return {(lane >> 2) + (i < 2 ? 0 : 8), lane % 4 * 2 + (i & 1)}; }

TEST(CudaEmulationTest, MmaMultipliesItsFragments) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (const bool bf16 : {true, false}) {
    const auto to_bits = [&](float x) { return bf16 ? F32ToBf16(x) : F32ToF16(x); };
    const auto from_bits = [&](uint16_t x) { return bf16 ? Bf16ToF32(x) : F16ToF32(x); };
    uint16_t a[16][16], b[16][8];
    float c[16][8];
    for (auto& row : a) {
      for (uint16_t& x : row) x = to_bits(normal(rng));
    }
    for (auto& row : b) {
      for (uint16_t& x : row) x = to_bits(normal(rng));
    }
    for (auto& row : c) {
      for (float& x : row) x = normal(rng);
    }
    std::vector<uint32_t> a_regs(128), b_regs(64);
    std::vector<float> d(128);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 8; ++i) {
        const Element e = OfA(lane, i);
        a_regs[lane * 4 + i / 2] |= uint32_t{a[e.row][e.col]} << (i % 2 * 16);
      }
      for (int i = 0; i < 4; ++i) {
        const Element e = OfB(lane, i);
        b_regs[lane * 2 + i / 2] |= uint32_t{b[e.row][e.col]} << (i % 2 * 16);
      }
      for (int i = 0; i < 4; ++i) {
        const Element e = OfC(lane, i);
        d[lane * 4 + i] = c[e.row][e.col];
      }
    }
    const MmaParams params{a_regs.data(), b_regs.data(), d.data()};
    if (bf16) {
      RunKernel<MmaKernel<true>>({.threads = 32}, params);
    } else {
      RunKernel<MmaKernel<false>>({.threads = 32}, params);
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const Element e = OfC(lane, i);
        double sum = c[e.row][e.col], magnitude = std::abs(sum);
        for (int k = 0; k < 16; ++k) {
          const double product = double{from_bits(a[e.row][k])} * from_bits(b[k][e.col]);
          sum += product;
          magnitude += std::abs(product);
        }
        EXPECT_NEAR(d[lane * 4 + i], sum, magnitude * 17 * 0x1p-24) << "lane " << lane << ", " << i;
      }
    }
  }
}

struct CopyParams {
  const uint16_t* in;  // [64, 8]
  uint16_t* out;
};

// Two groups; the first has arrived when all but the latest are waited for.
KVBLEND_KERNEL(32, 1) CopyAsyncKernel(CopyParams p) {
  SharedArena arena;
  SharedArray<uint16_t> staged = arena.Take<uint16_t>(512);
  CopyAsync16(staged, Lane() * 8, p.in + Lane() * 8, Lane() % 3 != 0);
  CopyAsyncCommit();
  CopyAsync16(staged, 256 + Lane() * 8, p.in + 256 + Lane() * 8, true);
  CopyAsyncCommit();
  CopyAsyncWait<1>();
  for (int i = 0; i < 8; ++i) p.out[Lane() * 8 + i] = staged[Lane() * 8 + i];
  CopyAsyncWait<0>();
  SyncThreads();
  const int other = 31 - Lane();
  for (int i = 0; i < 8; ++i) p.out[256 + other * 8 + i] = staged[256 + other * 8 + i];
}

TEST(CudaEmulationTest, CopyAsyncCopiesOrFillsWithZeros) {
  alignas(16) uint16_t in[512];
  for (int i = 0; i < 512; ++i) in[i] = static_cast<uint16_t>(i + 1);
  std::vector<uint16_t> out(512);
  RunKernel<CopyAsyncKernel>({.threads = 32, .shared_bytes = 1024}, CopyParams{in, out.data()});
  for (int i = 0; i < 512; ++i) {
    EXPECT_EQ(out[i], i < 256 && i / 8 % 3 == 0 ? 0 : in[i]) << i;
  }
}

}  // namespace
}  // namespace kvblend::kernels::cuda
