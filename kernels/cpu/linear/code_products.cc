// Which kernels multiply codes (code_products.h). Highway 1.0.3 has no operation for any of their
// instructions, so they are intrinsics, compiled for their sets and chosen here.
#include "kernels/cpu/linear/code_products.h"

#include "kernels/cpu/linear/codes/kernels.h"
#include "kernels/cpu/machine/instruction_set.h"

namespace kvblend::kernels {

int AllCodeKernels(const CodeKernels* (&out)[kMaxCodeKernels]) {
  int count = 0;
#if defined(__x86_64__)
  const InstructionSet allowed = AllowedInstructionSet();
  const bool avx2 = HasInstructions(InstructionSet::kAvx2) && allowed >= InstructionSet::kAvx2;
  if (HasInstructions(InstructionSet::kAvx512) && __builtin_cpu_supports("avx512vnni") &&
      allowed >= InstructionSet::kAvx512) {
    out[count++] = &CodeKernelsAvx512Vnni();
  }
  if (avx2 && HasInstructions(InstructionSet::kAvxVnni) && allowed >= InstructionSet::kAvxVnni) {
    out[count++] = &CodeKernelsAvxVnni();
  }
  if (avx2) out[count++] = &CodeKernelsAvx2();
#endif
  for (int i = count; i < kMaxCodeKernels; ++i) out[i] = nullptr;
  return count;
}

const CodeKernels* FasterThanF32Kernels() {
  const CodeKernels* best = BestCodeKernels();
  const bool avx512 =
      HasInstructions(InstructionSet::kAvx512) && AllowedInstructionSet() >= InstructionSet::kAvx512;
  return avx512 && !MultipliesAndAddsPairs() ? nullptr : best;
}

const CodeKernels* BestCodeKernels() {
  const CodeKernels* all[kMaxCodeKernels];
  AllCodeKernels(all);
  return all[0];
}

}  // namespace kvblend::kernels
