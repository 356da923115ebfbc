// The backend of kernels_cuda_test: CUDA on the GPU that KVBLEND_TEST_CUDA_DEVICE names, or the first.
// Without a usable one the program ends with an error.
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/cuda_backend.h"
#include "tests/conformance/harness.h"

namespace kvblend::kernels {

std::map<std::string, std::unique_ptr<Backend>> MakeTestBackends() {
  const char* device = std::getenv("KVBLEND_TEST_CUDA_DEVICE");
  auto cuda = CreateCudaBackend(device == nullptr ? 0 : std::atoi(device));
  if (!cuda.ok()) {
    std::fprintf(stderr, "kernels_cuda_test: %s\n", cuda.status().ToString().c_str());
    std::exit(2);
  }
  std::printf("%s\n", (*cuda)->Describe().c_str());
  std::map<std::string, std::unique_ptr<Backend>> backends;
  backends.emplace("reference", CreateReferenceBackend());
  backends.emplace("cuda", *std::move(cuda));
  return backends;
}

bool IsUnderTest(const std::string& name) { return name == "cuda"; }

}  // namespace kvblend::kernels
