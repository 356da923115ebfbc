// SpreadDeviation: deviations of computed rows, passed on to their neighbours in the pages. Arguments were
// checked by Backend.
#pragma once

#include "absl/types/span.h"
#include "kernels/cpu/kv/sections.h"
#include "kernels/cpu/machine/context.h"
#include "kernels/specs.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

void CpuSpreadDeviation(CpuContext& context, const KvTarget& target, absl::Span<const ColumnRange> ranges,
                        const DeviationSpread& keys, const DeviationSpread& values, ConstMatrixView k,
                        ConstMatrixView v);

}  // namespace kvblend::kernels
