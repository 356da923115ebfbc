#include "kernels/cpu/machine/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <atomic>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "hwy/highway.h"
#include "hwy/targets.h"

namespace kvblend::kernels {
namespace {

struct Limit {
  std::string_view name;
  InstructionSet set;
  dnnl::cpu_isa onednn;
  int64_t simd;  // Highway's; better ones have lower bits
};

constexpr Limit kLimits[] = {
    {"portable", InstructionSet::kPortable, dnnl::cpu_isa::sse41, HWY_SSE4},
    {"avx2", InstructionSet::kAvx2, dnnl::cpu_isa::avx2, HWY_AVX2},
    {"avx_vnni", InstructionSet::kAvxVnni, dnnl::cpu_isa::avx2_vnni, HWY_AVX2},
    {"avx512", InstructionSet::kAvx512, dnnl::cpu_isa::avx512_core_bf16, HWY_AVX3},
    {"amx", InstructionSet::kAmx, dnnl::cpu_isa::avx512_core_amx, HWY_AVX3},
};

std::atomic<InstructionSet> allowed{InstructionSet::kAmx};

#if HWY_ARCH_X86_64
// Compilers of this age cannot ask for these by name. Leaf 7, part 1, bit 4 of EAX.
bool HasAvxVnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & 1u << 4) != 0;
}
// Leaf 1, bit 29 of ECX.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & 1u << 29) != 0;
}
#endif

}  // namespace

bool HasInstructions(InstructionSet set) {
#if HWY_ARCH_X86_64
  switch (set) {
    case InstructionSet::kPortable:
      return __builtin_cpu_supports("sse4.1");
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
    case InstructionSet::kAvxVnni:
      return HasInstructions(InstructionSet::kAvx2) && HasAvxVnni();
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case InstructionSet::kAmx:  // oneDNN also asks the kernel for the tiles' state
      return (static_cast<int>(dnnl::get_effective_cpu_isa()) & dnnl_cpu_isa_avx512_core_amx) ==
             dnnl_cpu_isa_avx512_core_amx;
  }
  return false;
#else
  return set == InstructionSet::kPortable;
#endif
}

namespace {

absl::Status Apply() {
  const char* wanted = std::getenv("KVBLEND_CPU");
  if (wanted == nullptr || *wanted == '\0') return absl::OkStatus();
  const absl::StatusOr<InstructionSet> set = ParseInstructionSet(wanted);
  if (!set.ok()) return set.status();
  if (!HasInstructions(*set)) {
    std::string present;
    for (const Limit& limit : kLimits) {
      if (HasInstructions(limit.set))
        absl::StrAppend(&present, present.empty() ? "" : ", ", std::string(limit.name));
    }
    return absl::FailedPreconditionError(absl::StrCat(
        "KVBLEND_CPU is '", wanted, "', which this processor does not have; allowed here: ", present));
  }
  if (*set == InstructionSet::kAmx) return absl::OkStatus();  // the best there is
  const Limit& limit = kLimits[static_cast<size_t>(*set)];
  hwy::DisableTargets(limit.simd - 1);
  if (dnnl::set_max_cpu_isa(limit.onednn) != dnnl::status::success) {
    return absl::FailedPreconditionError(
        absl::StrCat("KVBLEND_CPU is '", wanted, "', but oneDNN has been used in this process before"));
  }
  allowed.store(*set, std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<InstructionSet> ParseInstructionSet(std::string_view name) {
  for (const Limit& limit : kLimits) {
    if (name == limit.name) return limit.set;
  }
  return absl::InvalidArgumentError(absl::StrCat("KVBLEND_CPU is '", std::string(name),
                                                 "'; allowed: portable, avx2, avx_vnni, avx512, amx"));
}

absl::Status ApplyInstructionSetLimit() {
  static const absl::Status* const outcome = new absl::Status(Apply());
  return *outcome;
}

bool MultipliesAndAddsPairs() {
#if HWY_ARCH_X86_64
  const InstructionSet limit = AllowedInstructionSet();
  if (limit >= InstructionSet::kAvx512 && HasInstructions(InstructionSet::kAvx512)) {
    return __builtin_cpu_supports("avx512vnni");
  }
  return limit >= InstructionSet::kAvxVnni && HasInstructions(InstructionSet::kAvxVnni);
#else
  return false;
#endif
}

InstructionSet AllowedInstructionSet() { return allowed.load(std::memory_order_relaxed); }

}  // namespace kvblend::kernels
