// A mixture of experts on the CPU. Each expert is a matrix of its own (linear/packed_weights.h), so that only
// those are read that a row was sent to, and the products are those of linear/linear.h.
//
// Rows are grouped by expert. Which way the products are computed follows from the number of rows of the
// whole call alone, never from how many of them an expert got, and each way computes a row as if it were
// alone: so a row's result does not depend on the others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/linear/code_products.h"
#include "kernels/cpu/linear/packed_weights.h"
#include "kernels/cpu/machine/context.h"

namespace kvblend::kernels {

/// So many rows per expert, were all of them to get as many, are multiplied straight from codes; beyond them
/// a block of weights is worth expanding. The work grows with the number of rows either way, but codes are
/// unpacked for every kMaxColumnRows of them.
inline constexpr int64_t kMaxRowsOfCodes = kMaxColumnRows;

/// Immutable after creation, so any number of threads may read it.
class CpuExperts final : public PackedExperts {
 public:
  /// For products in context.value_dtype. REQUIRES: a OneDnnThreadScope.
  static absl::StatusOr<std::unique_ptr<CpuExperts>> Create(CpuContext& context, int32_t num_experts,
                                                            int64_t rows, int64_t cols,
                                                            const WeightSource& source);
  /// kInvalidArgument when the weights were made by a backend of another kind or with another GEMM dtype.
  static absl::StatusOr<const CpuExperts*> From(const PackedExperts& experts, DataType dtype);

  int32_t num_experts() const override { return static_cast<int32_t>(experts_.size()); }
  int64_t rows() const override { return experts_[0]->rows(); }
  int64_t cols() const override { return experts_[0]->cols(); }
  int64_t rows_as_alone() const override;
  const CpuWeights& expert(int64_t index) const { return *experts_[index]; }

 private:
  explicit CpuExperts(std::vector<std::unique_ptr<CpuWeights>> experts) : experts_(std::move(experts)) {}

  const std::vector<std::unique_ptr<CpuWeights>> experts_;  // at least one
};

/// The rows of an ExpertLinear's output by expert: those of expert e are rows[begin[e]] .. rows[begin[e + 1]
/// - 1], ascending.
struct ExpertRows {
  absl::Span<const int32_t> begin;  // [num_experts + 1]
  absl::Span<const int32_t> rows;
  int64_t share = 1;  // rows of the output per row of the input

  int64_t NumRows(int64_t expert) const { return begin[expert + 1] - begin[expert]; }
  int64_t InputOf(int64_t row) const { return row / share; }
};

/// Backend::ExpertLinear with checked arguments. REQUIRES: a OneDnnThreadScope.
absl::Status CpuExpertLinear(CpuContext& context, ConstMatrixView x, const CpuExperts& experts,
                             IndicesView chosen, MatrixView out);

/// The products of experts that are kept as codes, straight from them: all of an operation in one parallel
/// loop. Experts that are kept otherwise are left out.
absl::Status ExpertCodeProducts(CpuContext& context, ConstMatrixView x, const CpuExperts& experts,
                                const ExpertRows& rows, MatrixView out);

/// Backend's operations of these names, with checked arguments.
void CpuChooseExperts(CpuContext& context, ConstMatrixView logits, const RoutingSpec& spec,
                      IndicesView experts, MatrixView weights);
absl::Status CpuAddExpertBias(CpuContext& context, ConstMatrixView bias, IndicesView experts, MatrixView out);
void CpuSumExperts(CpuContext& context, ConstMatrixView x, ConstMatrixView weights, bool accumulate,
                   MatrixView out);

}  // namespace kvblend::kernels
