#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/device_choice.h"
#ifdef KVBLEND_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace kvblend::kernels {

CudaProbe ProbeCuda() {
#ifdef KVBLEND_HAVE_CUDA
  return ProbeCudaDevices();
#else
  return {};
#endif
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const DeviceChoice& choice,
                                                       const CpuBackendOptions& cpu) {
  switch (choice.kind) {
    case DeviceChoice::Kind::kCpu:
      return CreateCpuBackend(cpu);
    case DeviceChoice::Kind::kReference:
      return CreateReferenceBackend();
    case DeviceChoice::Kind::kCuda:
#ifdef KVBLEND_HAVE_CUDA
      return CreateCudaBackend(choice.cuda_index);
#else
      break;
#endif
  }
  return absl::FailedPreconditionError("this build has no CUDA; it takes a build with -DKVBLEND_CUDA=ON");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view device, int num_threads) {
  auto choice = ChooseDevice(device, ProbeCuda);
  if (!choice.ok()) return choice.status();
  return CreateBackend(*choice, {.num_threads = num_threads});
}

}  // namespace kvblend::kernels
