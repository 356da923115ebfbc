#include "kernels/host/mass_scores.h"

#include <algorithm>
#include <numeric>

namespace kvblend::kernels {

void ScoreColumns(ConstMatrixView mass, absl::Span<const ColumnRange> counted,
                  absl::Span<const ColumnRange> wanted, float* out) {
  float* end = out;
  for (const ColumnRange& range : wanted) end = std::fill_n(end, range.end - range.begin, 0.0f);
  for (int64_t row = 0; row < mass.rows; ++row) {
    const auto* values = static_cast<const float*>(mass.Rows(row, 1).data);
    double total = 0;
    for (const ColumnRange& range : counted) {
      total += std::accumulate(values + range.begin, values + range.end, 0.0);
    }
    if (!(total > 0)) continue;
    const auto scale = static_cast<float>(1.0 / total);
    float* score = out;
    for (const ColumnRange& range : wanted) {
      for (int32_t column = range.begin; column < range.end; ++column, ++score) {
        *score = std::max(*score, values[column] * scale);
      }
    }
  }
}

}  // namespace kvblend::kernels
