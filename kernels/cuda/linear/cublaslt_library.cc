#include "kernels/cuda/linear/cublaslt_library.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace kvblend::kernels::cuda {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

absl::StatusOr<CublasLt> Load() {
  const std::string file = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  std::string reason;
  void* library = nullptr;
  for (const std::string& path : {file, absl::StrCat("/usr/local/cuda/lib64/", file)}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (reason.empty()) reason = dlerror();
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cuBLASLt can't be loaded: ", reason, "; it comes with CUDA ", CUBLAS_VER_MAJOR,
                     " and with the Python package nvidia-cublas; LD_LIBRARY_PATH may name its folder"));
  }
  CublasLt functions;
  const bool complete =
      Find(library, "cublasLtCreate", functions.Create) &&
      Find(library, "cublasLtDestroy", functions.Destroy) &&
      Find(library, "cublasLtGetStatusString", functions.GetStatusString) &&
      Find(library, "cublasLtMatmul", functions.Matmul) &&
      Find(library, "cublasLtMatmulAlgoGetHeuristic", functions.MatmulAlgoGetHeuristic) &&
      Find(library, "cublasLtMatmulDescCreate", functions.MatmulDescCreate) &&
      Find(library, "cublasLtMatmulDescDestroy", functions.MatmulDescDestroy) &&
      Find(library, "cublasLtMatmulDescSetAttribute", functions.MatmulDescSetAttribute) &&
      Find(library, "cublasLtMatmulPreferenceCreate", functions.MatmulPreferenceCreate) &&
      Find(library, "cublasLtMatmulPreferenceDestroy", functions.MatmulPreferenceDestroy) &&
      Find(library, "cublasLtMatmulPreferenceSetAttribute", functions.MatmulPreferenceSetAttribute) &&
      Find(library, "cublasLtMatrixLayoutCreate", functions.MatrixLayoutCreate) &&
      Find(library, "cublasLtMatrixLayoutDestroy", functions.MatrixLayoutDestroy);
  if (!complete) {
    return absl::FailedPreconditionError(absl::StrCat(file, " lacks a function: ", dlerror()));
  }
  return functions;
}

}  // namespace

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  static const auto* const library = new absl::StatusOr<CublasLt>(Load());
  if (!library->ok()) return library->status();
  return &**library;
}

}  // namespace kvblend::kernels::cuda
