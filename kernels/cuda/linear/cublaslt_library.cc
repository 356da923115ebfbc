#include "kernels/cuda/linear/cublaslt_library.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvblend::kernels::cuda {
namespace {

template <typename Function>
bool Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  return function != nullptr;
}

/// The files that match, in alphabetical order; none where the pattern can't be followed.
std::vector<std::string> Matching(const std::string& pattern) {
  glob_t found = {};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

/// Where `file` may lie, best first: where the loader looks, in the toolkit, and in Python's packages, which
/// PyTorch installs: those of the active environment, of the one that this program is in, and of the machine.
std::vector<std::string> Candidates(const std::string& file) {
  std::vector<std::string> paths = {file, absl::StrCat("/usr/local/cuda/lib64/", file)};
  std::vector<std::string> roots;
  if (const char* environment = std::getenv("VIRTUAL_ENV"); environment != nullptr) {
    roots.push_back(environment);
  }
  std::error_code unknown;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!unknown) roots.push_back(program.parent_path().parent_path());
  roots.insert(roots.end(), {"/usr/local", "/usr"});
  for (const std::string& root : roots) {
    for (const char* packages : {"site-packages", "dist-packages"}) {
      for (const char* folder : {"nvidia/cu*/lib", "nvidia/cublas/lib"}) {
        const std::vector<std::string> found =
            Matching(absl::StrCat(root, "/lib/python3*/", packages, "/", folder, "/", file));
        paths.insert(paths.end(), found.begin(), found.end());
      }
    }
  }
  return paths;
}

absl::StatusOr<CublasLt> Load() {
  const std::string file = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  std::string reason;
  void* library = nullptr;
  for (const std::string& path : Candidates(file)) {
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
