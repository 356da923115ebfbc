// Loops of nothing but products and their sums, in registers: of pairs of 16-bit codes, for which oneDNN has
// no product to compare with, and of AMX's tiles, which oneDNN's products keep half busy at best.
#pragma once

#include <cstdint>

namespace kvblend {

struct PairProducts {
  void (*run)(int64_t iterations) = nullptr;
  double operations = 0;  // of an iteration: multiplications and additions of elements
};

/// In the widest vectors and the fewest instructions that KVBLEND_CPU and the processor allow. `run` is null
/// without AVX2.
/// REQUIRES: kernels::ApplyInstructionSetLimit was called, as creating a CPU backend does.
PairProducts BestPairProducts();

/// Of AMX's tiles of bf16. `run` is null where KVBLEND_CPU, the processor or the system has none.
/// REQUIRES: as BestPairProducts.
PairProducts TileProducts();

}  // namespace kvblend
