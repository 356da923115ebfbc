// Loops of nothing but products of pairs of 16-bit codes and their sums, in registers: what bounds kernels
// that multiply such codes, for which oneDNN has no product to compare with.
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

}  // namespace kvblend
