#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#ifdef KVBLEND_HAVE_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace kvblend::kernels {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name, int num_threads) {
  if (name == "reference") return CreateReferenceBackend();
  if (name == "cpu") return CreateCpuBackend({.num_threads = num_threads});
#ifdef KVBLEND_HAVE_CUDA
  if (name == "cuda") return CreateCudaBackend();
  constexpr char kAllowed[] = "'reference', 'cpu', 'cuda'";
#else
  constexpr char kAllowed[] = "'reference', 'cpu'";
#endif
  return absl::InvalidArgumentError(
      absl::StrCat("backend is '", std::string(name), "'; allowed: ", kAllowed));
}

}  // namespace kvblend::kernels
