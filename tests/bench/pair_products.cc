#include "tests/bench/pair_products.h"

#include "kernels/cpu/amx/instructions.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/machine/instruction_set.h"

namespace kvblend {

#if defined(__x86_64__)
namespace {

// The assembler repeats lines for every number in a list. Products of two constants: compilers would leave
// them out in C++.
#define REPEAT(numbers, line) ".irp i," numbers "\n" line "\n.endr\n"
#define LOOP(body)                                                                                     \
  asm volatile(".p2align 6\n1:\n" body "dec %0\njnz 1b"                                                \
               : "+r"(iterations)                                                                      \
               :                                                                                       \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                 "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")

// So many sums that none waits for the one before it.
constexpr int kFusedSums = 12;
#define FUSED_SUMS "0,1,2,3,4,5,6,7,8,9,10,11"
void FusedOf32Bytes(int64_t iterations) {
  LOOP(REPEAT(FUSED_SUMS, "%{vex%} vpdpwssd %%ymm14, %%ymm15, %%ymm\\i"));
}
void FusedOf64Bytes(int64_t iterations) { LOOP(REPEAT(FUSED_SUMS, "vpdpwssd %%zmm14, %%zmm15, %%zmm\\i")); }

// Where a product and its sum are two instructions, four products come before their sums.
constexpr int kPairSums = 4;
void PairsOf32Bytes(int64_t iterations) {
  LOOP(REPEAT("0,1,2,3", "vpmaddwd %%ymm14, %%ymm15, %%ymm1\\i")
           REPEAT("0,1,2,3", "vpaddd %%ymm1\\i, %%ymm\\i, %%ymm\\i"));
}
void PairsOf64Bytes(int64_t iterations) {
  LOOP(REPEAT("0,1,2,3", "vpmaddwd %%zmm14, %%zmm15, %%zmm1\\i")
           REPEAT("0,1,2,3", "vpaddd %%zmm1\\i, %%zmm\\i, %%zmm\\i"));
}

// Two by two tiles of sums, as kernels/cpu/amx/products.h has them.
void Tiles(int64_t iterations) {
  using Amx = kernels::AmxInstructions;
  kernels::AmxConfig config;
  for (int tile = 0; tile < kernels::AmxConfig::kNumTiles; ++tile) {
    config.row_bytes[tile] = kernels::AmxConfig::kMaxRowBytes;
    config.rows[tile] = kernels::AmxConfig::kMaxRows;
  }
  Amx::Configure(config);  // to zeros
  for (; iterations > 0; --iterations) {
    Amx::AddProducts<0, 4, 6>();
    Amx::AddProducts<1, 4, 7>();
    Amx::AddProducts<2, 5, 6>();
    Amx::AddProducts<3, 5, 7>();
  }
  Amx::Release();
}

}  // namespace

PairProducts TileProducts() {
  if (kernels::AllowedInstructionSet() != kernels::InstructionSet::kAmx || !kernels::RequestAmx()) return {};
  return {Tiles, 2.0 * 4 * 16 * 16 * 32};
}

PairProducts BestPairProducts() {
  using kernels::InstructionSet;
  const InstructionSet allowed = kernels::AllowedInstructionSet();
  const bool wide = allowed >= InstructionSet::kAvx512 && kernels::HasInstructions(InstructionSet::kAvx512),
             fused = kernels::MultipliesAndAddsPairs();
  if (allowed < InstructionSet::kAvx2 || !kernels::HasInstructions(InstructionSet::kAvx2)) return {};
  const double operations = 2 * (wide ? 32 : 16) * (fused ? kFusedSums : kPairSums);
  if (fused) return {wide ? FusedOf64Bytes : FusedOf32Bytes, operations};
  return {wide ? PairsOf64Bytes : PairsOf32Bytes, operations};
}
#else
PairProducts BestPairProducts() { return {}; }
PairProducts TileProducts() { return {}; }
#endif

}  // namespace kvblend
