// Products with packed weights.
#pragma once

#include "absl/status/status.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/packed_weights.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Backend::Linear with checked arguments. REQUIRES: a OneDnnThreadScope.
absl::Status CpuLinear(CpuContext& context, ConstMatrixView x, const CpuWeights& weights, bool accumulate,
                       MatrixView out);

}  // namespace kvblend::kernels
