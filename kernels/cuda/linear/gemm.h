// out (+)= x w^T behind an interface, so that the backend also runs where there is no cuBLASLt:
// gemm_cublaslt.cc is the hardware's, and a program that links no other one gets it.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/tensor.h"

namespace kvblend::kernels::cuda {

/// Thread-safe.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual const char* name() const = 0;
  /// Device memory that Run may scribble in.
  virtual int64_t workspace_bytes() const = 0;
  /// x: bf16 [n, k]; w: bf16 [m, k]; out: f32 [n, m], none empty; the rows of x and w begin at multiples of
  /// 16 bytes. `workspace` is not used by anybody else on another stream.
  virtual absl::Status Run(StreamHandle stream, ConstMatrixView x, ConstMatrixView w, bool accumulate,
                           MatrixView out, void* workspace) = 0;
};

absl::StatusOr<std::unique_ptr<Gemm>> CreateGemm();

}  // namespace kvblend::kernels::cuda
