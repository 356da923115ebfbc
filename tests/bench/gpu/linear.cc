#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/linear/device_weights.h"
#include "kernels/host/float_convert.h"
#include "tests/bench/gpu/inputs.h"
#include "tests/bench/gpu/operations.h"
#include "tests/bench/gpu/random_weights.h"

namespace kvblend::gpu_bench {
namespace {

using kernels::DataType;

// Sums of exact products in fp32, in whatever order; tensor cores cut their partial sums off, which grows
// with the number of columns (some 2e-5 at 14,336).
constexpr double kSumBound = 1e-4;

struct Matrix {
  const char* name;
  int64_t rows, cols;
};

// The products of a few rows with a few rows of the weights, in double, from what lies on the device.
absl::StatusOr<double> Error(Bench& bench, const kernels::PackedWeights& weights, const Mirror& x,
                             const Mirror& out) {
  KVBLEND_ASSIGN_OR_RETURN(const auto* packed, kernels::cuda::DeviceWeights::From(weights));
  const kernels::ConstMatrixView view = packed->view();
  std::vector<float> expected, actual;
  const std::vector<int32_t> rows = SampleRows(out.rows());
  const std::vector<float> inputs = x.HostRows(rows);
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<float> results, out.DeviceRows(bench, rows));
  std::vector<uint16_t> bits(view.cols);
  for (int64_t feature = 0; feature < view.rows; feature += view.rows / 7) {
    const auto* from = static_cast<const uint16_t*>(view.data) + feature * view.row_stride;
    KVBLEND_RETURN_IF_ERROR(bench.Download(bits.data(), from, view.cols * 2));
    for (size_t i = 0; i < rows.size(); ++i) {
      double sum = 0;
      for (int64_t c = 0; c < view.cols; ++c)
        sum += double{inputs[i * view.cols + c]} * kernels::Bf16ToF32(bits[c]);
      expected.push_back(static_cast<float>(sum));
      actual.push_back(results[i * view.rows + feature]);
    }
  }
  return RelativeError(actual, expected);
}

}  // namespace

absl::Status MeasureLinear(Bench& bench) {
  const Sizes& sizes = bench.sizes();
  const int64_t query_dim = int64_t{sizes.num_heads} * sizes.head_dim;
  const int64_t kv_dim = int64_t{sizes.num_kv_heads} * sizes.head_dim;
  for (const Matrix& matrix : {Matrix{"qkv", query_dim + 2 * kv_dim, sizes.hidden_dim},
                               Matrix{"attention output", sizes.hidden_dim, query_dim},
                               Matrix{"gate and up", int64_t{2} * sizes.ffn_dim, sizes.hidden_dim},
                               Matrix{"down", sizes.hidden_dim, sizes.ffn_dim}}) {
    KVBLEND_ASSIGN_OR_RETURN(const auto weights,
                             MakeRandomWeights(matrix.rows, matrix.cols, kernels::WeightUsage::kLinear, 41));
    for (const int64_t rows :
         {int64_t{sizes.tokens}, int64_t{sizes.gathered}, int64_t{sizes.question}, int64_t{8}, int64_t{1}}) {
      KVBLEND_ASSIGN_OR_RETURN(Mirror x, Mirror::Random(bench, DataType::kBF16, rows, matrix.cols, 42));
      KVBLEND_ASSIGN_OR_RETURN(Mirror out, Mirror::Zeros(bench, DataType::kF32, rows, matrix.rows));
      const auto multiply = [&] {
        return bench.backend().Linear(bench.stream(), x.device(), *weights, false, out.device());
      };
      KVBLEND_RETURN_IF_ERROR(multiply());
      KVBLEND_ASSIGN_OR_RETURN(const double error, Error(bench, *weights, x, out));
      const double in = static_cast<double>(matrix.cols), features = static_cast<double>(matrix.rows);
      const double n = static_cast<double>(rows);
      const Work work = {
          .operation = "Linear",
          .shape = absl::StrCat(matrix.name, ": ", rows, " rows, ", matrix.cols, " to ", matrix.rows),
          .flops = 2 * n * in * features,
          .bytes = 2 * (n * in + in * features) + 4 * n * features,
          .error = error,
          .error_bound = kSumBound};
      KVBLEND_RETURN_IF_ERROR(bench.Add(work, multiply));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::gpu_bench
