// The checked entries of the operations on a mixture of experts.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/checks.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// `size` numbers in memory of their own.
absl::Status CheckExperts(absl::string_view op, IndicesView experts, int64_t size) {
  if (size > kMaxInt32) return Invalid(op, "experts of ", size, " rows; allowed: up to ", kMaxInt32);
  if (experts.size != size) return Invalid(op, "experts.size is ", experts.size, "; allowed: ", size);
  if (size > 0 && experts.data == nullptr) return Invalid(op, "experts.data is null with ", size, " of them");
  if (reinterpret_cast<uintptr_t>(experts.data) % sizeof(int32_t) != 0) {
    return Invalid(op, "experts.data is not aligned to its element of 4 bytes");
  }
  return absl::OkStatus();
}

// A matrix of elements that are as wide as indices, for the checks of overlap.
ConstMatrixView AsMatrix(IndicesView indices) {
  return {indices.data, DataType::kF32, indices.size > 0 ? 1 : 0, indices.size, indices.size};
}

}  // namespace

absl::Status CheckExpertNumbers(absl::string_view op, IndicesView experts, int64_t num_experts) {
  for (int64_t i = 0; i < experts.size; ++i) {
    if (experts.data[i] >= 0 && experts.data[i] < num_experts) continue;
    return Invalid(op, "experts[", i, "] is ", experts.data[i], "; allowed: 0 .. ", num_experts - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackedExperts>> Backend::PackExperts(int32_t num_experts, int64_t rows,
                                                                    int64_t cols,
                                                                    const WeightSource& source) {
  constexpr absl::string_view kOp = "PackExperts";
  if (num_experts < 1 || num_experts > kMaxExperts) {
    return Invalid(kOp, "num_experts is ", num_experts, "; allowed: 1 .. ", kMaxExperts);
  }
  // On a device the rows of all experts are one matrix.
  const int64_t max_rows = kMaxInt32 / num_experts;
  if (rows < 1 || rows > max_rows) return Invalid(kOp, "rows is ", rows, "; allowed: 1 .. ", max_rows);
  if (cols < 1 || cols > kMaxInt32) return Invalid(kOp, "cols is ", cols, "; allowed: 1 .. ", kMaxInt32);
  return DoPackExperts(num_experts, rows, cols, source);
}

absl::Status Backend::ChooseExperts(Stream& stream, ConstMatrixView logits, const RoutingSpec& spec,
                                    IndicesView experts, MatrixView weights) {
  constexpr absl::string_view kOp = "ChooseExperts";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "logits", logits, logits.rows, logits.cols, {DataType::kF32}));
  if (logits.cols < 1 || logits.cols > kMaxExperts) {
    return Invalid(kOp, "logits.cols is ", logits.cols, "; allowed: 1 .. ", kMaxExperts);
  }
  const int64_t max_chosen = std::min<int64_t>(logits.cols, kMaxChosenExperts);
  if (spec.num_chosen < 1 || spec.num_chosen > max_chosen) {
    return Invalid(kOp, "num_chosen is ", spec.num_chosen, "; allowed: 1 .. ", max_chosen);
  }
  if (logits.rows > kMaxInt32) {
    return Invalid(kOp, "logits.rows is ", logits.rows, "; allowed: up to ", kMaxInt32);
  }
  KVBLEND_RETURN_IF_ERROR(CheckExperts(kOp, experts, logits.rows * spec.num_chosen));
  KVBLEND_RETURN_IF_ERROR(
      CheckMatrix(kOp, "weights", weights, logits.rows, spec.num_chosen, {DataType::kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, logits, "logits", weights, "weights"));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, logits, "logits", AsMatrix(experts), "experts"));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, weights, "weights", AsMatrix(experts), "experts"));
  return DoChooseExperts(stream, logits, spec, experts, weights);
}

absl::Status Backend::ExpertLinear(Stream& stream, ConstMatrixView x, const PackedExperts& weights,
                                   IndicesView experts, MatrixView out) {
  constexpr absl::string_view kOp = "ExpertLinear";
  KVBLEND_RETURN_IF_ERROR(
      CheckMatrix(kOp, "x", x, x.rows, weights.cols(), {DataType::kF32, compute_dtype()}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, out.rows, weights.rows(), {DataType::kF32}));
  if (x.rows == 0 ? out.rows != 0 : out.rows % x.rows != 0) {
    return Invalid(kOp, "out.rows is ", out.rows, "; allowed: multiples of x.rows = ", x.rows);
  }
  KVBLEND_RETURN_IF_ERROR(CheckExperts(kOp, experts, out.rows));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, x, "x", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, AsMatrix(experts), "experts", out));
  return DoExpertLinear(stream, x, weights, experts, out);
}

absl::Status Backend::SumExperts(Stream& stream, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                                 MatrixView out) {
  constexpr absl::string_view kOp = "SumExperts";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, out.rows, out.cols, {DataType::kF32}));
  if (weights.cols < 1 || weights.cols > kMaxChosenExperts) {
    return Invalid(kOp, "weights.cols is ", weights.cols, "; allowed: 1 .. ", kMaxChosenExperts);
  }
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "weights", weights, out.rows, weights.cols, {DataType::kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "x", x, out.rows * weights.cols, out.cols, {DataType::kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, x, "x", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, weights, "weights", out));
  return DoSumExperts(stream, x, weights, accumulate, out);
}

absl::Status Backend::AddExpertBias(Stream& stream, ConstMatrixView bias, IndicesView experts,
                                    MatrixView out) {
  constexpr absl::string_view kOp = "AddExpertBias";
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "out", out, out.rows, out.cols, {DataType::kF32}));
  KVBLEND_RETURN_IF_ERROR(CheckMatrix(kOp, "bias", bias, bias.rows, out.cols, {DataType::kF32}));
  if (bias.rows < 1 || bias.rows > kMaxExperts) {
    return Invalid(kOp, "bias.rows is ", bias.rows, "; allowed: 1 .. ", kMaxExperts);
  }
  KVBLEND_RETURN_IF_ERROR(CheckExperts(kOp, experts, out.rows));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, bias, "bias", out));
  KVBLEND_RETURN_IF_ERROR(CheckDisjoint(kOp, AsMatrix(experts), "experts", out));
  return DoAddExpertBias(stream, bias, experts, out);
}

}  // namespace kvblend::kernels
