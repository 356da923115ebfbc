// Which instructions the CPU backend may use: all that the processor has, or fewer.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend::kernels {

enum class InstructionSet : uint8_t {
  kPortable,  // SSE4.1
  kAvx2,
  kAvxVnni,  // AVX2 and products of 8-bit codes in one instruction
  kAvx512,   // with BF16 where the processor has it
  kAmx,
};

/// "portable", "avx2", "avx_vnni", "avx512", "amx"; kInvalidArgument for other names.
absl::StatusOr<InstructionSet> ParseInstructionSet(std::string_view name);

/// Limits the process to the environment's KVBLEND_CPU, for tests and comparisons; without it, to nothing.
/// The first call decides, which comes before anything is computed. kInvalidArgument: an unknown name.
/// kFailedPrecondition: the processor has less than that.
absl::Status ApplyInstructionSetLimit();

/// Whether the processor has it, and all that it needs of sets before it.
bool HasInstructions(InstructionSet set);

/// The best that KVBLEND_CPU allows: kAmx without it. REQUIRES: ApplyInstructionSetLimit was called.
InstructionSet AllowedInstructionSet();

/// Whether the vectors of the best set allowed can multiply pairs of 16-bit codes and add the products in one
/// instruction (vpdpwssd): with AVX512-VNNI those of 64 bytes, with AVX-VNNI those of 32. REQUIRES: as above.
bool MultipliesAndAddsPairs();

}  // namespace kvblend::kernels
