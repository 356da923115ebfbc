// kernels/cuda/linear/gemm.h over the emulator, in place of cuBLASLt: plain loops with fp32 sums.
#include "kernels/cuda/linear/gemm.h"

#include <cstdint>
#include <memory>

#include "kernels/cuda/runtime/runtime.h"
#include "kernels/host/float_convert.h"
#include "tests/cuda_emulation/launcher.h"

namespace kvblend::kernels::cuda {
namespace {

bool RowsAreAligned(ConstMatrixView matrix) {
  return reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0 && matrix.row_stride % 8 == 0;
}

void Multiply(ConstMatrixView x, ConstMatrixView w, bool accumulate, MatrixView out) {
  for (int64_t i = 0; i < out.rows; ++i) {
    auto* row = static_cast<float*>(out.Rows(i, 1).data);
    for (int64_t j = 0; j < out.cols; ++j) {
      float sum = 0;
      for (int64_t c = 0; c < x.cols; ++c) {
        sum += LoadElement(x.data, DataType::kBF16, i * x.row_stride + c) *
               LoadElement(w.data, DataType::kBF16, j * w.row_stride + c);
      }
      row[j] = accumulate ? row[j] + sum : sum;
    }
  }
}

class HostGemm final : public Gemm {
 public:
  const char* name() const override { return "loops on the host"; }
  int64_t workspace_bytes() const override { return 0; }
  absl::Status Run(StreamHandle stream, ConstMatrixView x, ConstMatrixView w, bool accumulate, MatrixView out,
                   void*) override {
    if (!RowsAreAligned(x) || !RowsAreAligned(w)) {
      return absl::InternalError(
          "rows of a product's operands begin elsewhere than at multiples of 16 bytes");
    }
    cuda_emulation::EnqueueHost(stream, [=] { Multiply(x, w, accumulate, out); });
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> CreateGemm() { return std::make_unique<HostGemm>(); }

}  // namespace kvblend::kernels::cuda
