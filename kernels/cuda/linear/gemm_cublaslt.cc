// GEMMs of cuBLASLt: bf16 in, fp32 sums and results. The algorithm for a shape is chosen once.
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/cuda/linear/cublaslt_library.h"
#include "kernels/cuda/linear/gemm.h"

namespace kvblend::kernels::cuda {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;  // what NVIDIA advises for Hopper

absl::Status ToStatus(const CublasLt& lt, cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const auto code = status == CUBLAS_STATUS_ALLOC_FAILED ? absl::StatusCode::kResourceExhausted
                                                         : absl::StatusCode::kInternal;
  return absl::Status(code, absl::StrCat(call, ": ", lt.GetStatusString(status)));
}

#define KVBLEND_RETURN_IF_CUBLAS_ERROR(function, ...)                                         \
  do {                                                                                        \
    if (absl::Status status = ToStatus(lt_, lt_.function(__VA_ARGS__), "cublasLt" #function); \
        !status.ok()) {                                                                       \
      return status;                                                                          \
    }                                                                                         \
  } while (false)

struct Layouts {
  const CublasLt& lt;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;

  explicit Layouts(const CublasLt& library) : lt(library) {}
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;
  ~Layouts() {
    if (operation != nullptr) (void)lt.MatmulDescDestroy(operation);
    for (cublasLtMatrixLayout_t layout : {w, x, out}) {
      if (layout != nullptr) (void)lt.MatrixLayoutDestroy(layout);
    }
  }
};

/// Everything about a product but its addresses; made once per shape.
struct Product {
  explicit Product(const CublasLt& library) : layouts(library) {}
  Layouts layouts;
  cublasLtMatmulAlgo_t algorithm;
};

class CublasLtGemm final : public Gemm {
 public:
  CublasLtGemm(const CublasLt& library, cublasLtHandle_t handle) : lt_(library), handle_(handle) {}
  ~CublasLtGemm() override { (void)lt_.Destroy(handle_); }
  const char* name() const override { return "cuBLASLt"; }
  int64_t workspace_bytes() const override { return kWorkspaceBytes; }

  absl::Status Run(StreamHandle stream, ConstMatrixView x, ConstMatrixView w, bool accumulate, MatrixView out,
                   void* workspace) override {
    const auto product = ProductFor(x, w, accumulate, out);
    if (!product.ok()) return product.status();
    const float alpha = 1.0f, beta = accumulate ? 1.0f : 0.0f;
    const Layouts& layouts = (*product)->layouts;
    KVBLEND_RETURN_IF_CUBLAS_ERROR(Matmul, handle_, layouts.operation, &alpha, w.data, layouts.w, x.data,
                                   layouts.x, &beta, out.data, layouts.out, out.data, layouts.out,
                                   &(*product)->algorithm, workspace, kWorkspaceBytes,
                                   reinterpret_cast<cudaStream_t>(stream));
    return absl::OkStatus();
  }

 private:
  // Addresses count as far as they are aligned: algorithms differ in what they need.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint32_t, bool>;

  static uint32_t AlignmentOf(const void* data) {
    uint32_t alignment = 256;
    while (reinterpret_cast<uintptr_t>(data) % alignment != 0) alignment /= 2;
    return alignment;
  }

  absl::StatusOr<const Product*> ProductFor(const ConstMatrixView& x, const ConstMatrixView& w,
                                            bool accumulate, const MatrixView& out) {
    const uint32_t alignment = std::min({AlignmentOf(x.data), AlignmentOf(w.data), AlignmentOf(out.data)});
    const Key key{out.rows,     out.cols,       x.cols,    x.row_stride,
                  w.row_stride, out.row_stride, alignment, accumulate};
    const absl::MutexLock lock(&mutex_);
    auto& product = products_[key];
    if (product == nullptr) {
      auto made = std::make_unique<Product>(lt_);
      if (absl::Status status = Choose(x, w, out, alignment, *made); !status.ok()) return status;
      product = std::move(made);
    }
    return product.get();
  }

  // cuBLASLt counts by columns, so that row-major out [n, m] is its matrix [m, n], and out = x w^T becomes
  // out' = w'^T x'.
  absl::Status Choose(const ConstMatrixView& x, const ConstMatrixView& w, const MatrixView& out,
                      uint32_t alignment, Product& product) const {
    Layouts& layouts = product.layouts;
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatmulDescCreate, &layouts.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatmulDescSetAttribute, layouts.operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                   &transpose, sizeof(transpose));
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatrixLayoutCreate, &layouts.w, CUDA_R_16BF, w.cols, w.rows, w.row_stride);
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatrixLayoutCreate, &layouts.x, CUDA_R_16BF, x.cols, x.rows, x.row_stride);
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatrixLayoutCreate, &layouts.out, CUDA_R_32F, out.cols, out.rows,
                                   out.row_stride);
    cublasLtMatmulPreference_t preference = nullptr;
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatmulPreferenceCreate, &preference);
    const auto destroy = [this](cublasLtMatmulPreference_t p) { (void)lt_.MatmulPreferenceDestroy(p); };
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(destroy)> owner(preference, destroy);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return ToStatus(lt_, lt_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
                      "cublasLtMatmulPreferenceSetAttribute");
    };
    const auto workspace = static_cast<size_t>(kWorkspaceBytes);
    if (auto s = set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace); !s.ok()) return s;
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      if (auto s = set(attribute, alignment); !s.ok()) return s;
    }
    cublasLtMatmulHeuristicResult_t best;
    int found = 0;
    KVBLEND_RETURN_IF_CUBLAS_ERROR(MatmulAlgoGetHeuristic, handle_, layouts.operation, layouts.w, layouts.x,
                                   layouts.out, layouts.out, preference, 1, &best, &found);
    if (found == 0) {
      return absl::InternalError(absl::StrCat("cuBLASLt has no algorithm for [", x.rows, ", ", x.cols,
                                              "] x [", w.rows, ", ", w.cols, "]^T"));
    }
    product.algorithm = best.algo;
    return absl::OkStatus();
  }

  const CublasLt& lt_;
  const cublasLtHandle_t handle_;
  absl::Mutex mutex_;
  std::map<Key, std::unique_ptr<Product>> products_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Gemm>> CreateGemm() {
  const auto library = LoadCublasLt();
  if (!library.ok()) return library.status();
  cublasLtHandle_t handle = nullptr;
  if (auto s = ToStatus(**library, (*library)->Create(&handle), "cublasLtCreate"); !s.ok()) return s;
  return std::make_unique<CublasLtGemm>(**library, handle);
}

}  // namespace kvblend::kernels::cuda
