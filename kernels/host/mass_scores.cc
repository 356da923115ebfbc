#include "kernels/host/mass_scores.h"

#include <algorithm>

namespace kvblend::kernels {
namespace {

struct Totals {
  double mass = 0, length = 0, columns = 0;
};

Totals TotalsOf(const float* mass, const float* lengths, absl::Span<const ColumnRange> counted) {
  Totals totals;
  for (const ColumnRange& range : counted) {
    Totals of_range;
    for (int32_t column = range.begin; column < range.end; ++column) {
      of_range.mass += mass[column];
      if (!(mass[column] > 0)) continue;
      of_range.length += lengths[column];
      of_range.columns += 1;
    }
    totals.mass += of_range.mass;
    totals.length += of_range.length;
    totals.columns += of_range.columns;
  }
  return totals;
}

}  // namespace

void ScoreColumns(ConstMatrixView mass, ConstMatrixView lengths, absl::Span<const ColumnRange> counted,
                  absl::Span<const ColumnRange> wanted, float* out) {
  float* end = out;
  for (const ColumnRange& range : wanted) end = std::fill_n(end, range.end - range.begin, 0.0f);
  for (int64_t row = 0; row < mass.rows; ++row) {
    const auto* attention = static_cast<const float*>(mass.Rows(row, 1).data);
    const auto* length = static_cast<const float*>(lengths.Rows(row, 1).data);
    const Totals totals = TotalsOf(attention, length, counted);
    const double product = totals.mass * totals.length;
    if (!(product > 0)) continue;
    const auto scale = static_cast<float>(totals.columns / product);
    float* score = out;
    for (const ColumnRange& range : wanted) {
      for (int32_t column = range.begin; column < range.end; ++column, ++score) {
        const float term = attention[column] * length[column] * scale;
        *score += term > 0 ? term * term : 0.0f;
      }
    }
  }
}

}  // namespace kvblend::kernels
