// SpreadDeviation, a token and a head at a time.
#pragma once

#include "absl/types/span.h"
#include "kernels/host/batch_plan.h"
#include "kernels/specs.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Backend::SpreadDeviation, whose arguments were checked. Sums are carried in double.
void SpreadDeviationByDefinition(const HostBatchPlan& plan, const HostRopeTable& rope,
                                 absl::Span<const ColumnRange> ranges, const DeviationSpread& keys,
                                 const DeviationSpread& values, ConstMatrixView k, ConstMatrixView v,
                                 const KvPagesView& pages);

}  // namespace kvblend::kernels
