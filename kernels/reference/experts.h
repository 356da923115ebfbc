// The definition of the operations on a mixture of experts, for reference_backend.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kvblend::kernels {

/// Backend's operations of these names, with checked arguments; "ByDefinition" tells them from the calls.
absl::StatusOr<std::unique_ptr<PackedExperts>> PackExpertsByDefinition(int32_t num_experts, int64_t rows,
                                                                       int64_t cols,
                                                                       const WeightSource& source);
void ChooseExpertsByDefinition(ConstMatrixView logits, const RoutingSpec& spec, IndicesView experts,
                               MatrixView weights);
absl::Status ExpertLinearByDefinition(ConstMatrixView x, const PackedExperts& weights, IndicesView experts,
                                      MatrixView out);
absl::Status AddExpertBiasByDefinition(ConstMatrixView bias, IndicesView experts, MatrixView out);
void SumExpertsByDefinition(ConstMatrixView x, ConstMatrixView weights, bool accumulate, MatrixView out);

}  // namespace kvblend::kernels
