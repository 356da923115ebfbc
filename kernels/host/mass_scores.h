// The definition of MassScores, for matrices in host memory.
#pragma once

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// Computes what Backend::MassScores does. out: [columns of `wanted`]
void ScoreColumns(ConstMatrixView mass, ConstMatrixView lengths, absl::Span<const ColumnRange> counted,
                  absl::Span<const ColumnRange> wanted, float* out);

}  // namespace kvblend::kernels
