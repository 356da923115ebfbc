#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(std::string_view name, int num_threads) {
  if (name == "reference") return CreateReferenceBackend();
  if (name == "cpu") return CreateCpuBackend({.num_threads = num_threads});
  return absl::InvalidArgumentError(
      absl::StrCat("backend is '", std::string(name), "'; allowed: 'reference', 'cpu'"));
}

}  // namespace kvblend::kernels
