// The backends of kernels_conformance_test: "reference", "cpu_f32" and, where the processor has it,
// "cpu_bf16".
#include <cstdlib>
#include <iostream>
#include <utility>

#include "tests/conformance/harness.h"

namespace kvblend::kernels {
namespace {

std::unique_ptr<Backend> MakeBackend(const std::string& name) {
  if (name == "reference") return CreateReferenceBackend();
  CpuBackendOptions options;
  options.num_threads =
      3;  // more than this suite's smallest machine has processors, so that threads interleave
  options.gemm = name == "cpu_bf16" ? CpuBackendOptions::Gemm::kBF16 : CpuBackendOptions::Gemm::kF32;
  auto backend = CreateCpuBackend(options);
  if (!backend.ok() && options.gemm == CpuBackendOptions::Gemm::kF32) {
    std::cerr << backend.status() << std::endl;
    std::abort();
  }
  return backend.ok() ? *std::move(backend) : nullptr;
}

}  // namespace

std::map<std::string, std::unique_ptr<Backend>> MakeTestBackends() {
  std::map<std::string, std::unique_ptr<Backend>> backends;
  for (const char* name : {"reference", "cpu_f32", "cpu_bf16"}) {
    if (auto backend = MakeBackend(name); backend != nullptr) backends.emplace(name, std::move(backend));
  }
  return backends;
}

bool IsUnderTest([[maybe_unused]] const std::string& name) {
#ifdef __SANITIZE_THREAD__
  return name != "reference";  // has one thread, and would take most of the time here
#else
  return true;
#endif
}

}  // namespace kvblend::kernels
