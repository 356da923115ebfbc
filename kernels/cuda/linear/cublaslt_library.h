// cuBLASLt, found when the program runs: it is half a gigabyte that a binary need not carry and that a
// machine without a GPU need not have.
#pragma once

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace kvblend::kernels::cuda {

/// The functions in use, by their names without "cublasLt".
struct CublasLt {
  decltype(&cublasLtCreate) Create = nullptr;
  decltype(&cublasLtDestroy) Destroy = nullptr;
  decltype(&cublasLtGetStatusString) GetStatusString = nullptr;
  decltype(&cublasLtMatmul) Matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate = nullptr;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy = nullptr;
};

/// The library of the version that this was compiled for, loaded once for the process. kFailedPrecondition
/// with the loader's words when it is not where the loader looks (LD_LIBRARY_PATH, /etc/ld.so.conf,
/// /usr/local/cuda/lib64).
absl::StatusOr<const CublasLt*> LoadCublasLt();

}  // namespace kvblend::kernels::cuda
