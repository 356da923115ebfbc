// Which rows of a batch stand in which ranges of positions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace kvblend::kernels {

/// A range of positions, and the rows of a plan that stand in it.
struct RangeRows {
  int32_t begin, end;
  int32_t first_row, num_rows;
};

/// The ranges in which some tokens have a row and some have none. positions: of the rows, ascending
inline std::vector<RangeRows> PartlyComputedRanges(absl::Span<const int32_t> positions,
                                                   absl::Span<const ColumnRange> ranges) {
  std::vector<RangeRows> partly;
  for (const auto& [begin, end] : ranges) {
    const auto first = std::lower_bound(positions.begin(), positions.end(), begin),
               last = std::lower_bound(first, positions.end(), end);
    const auto rows = static_cast<int32_t>(last - first);
    if (rows == 0 || rows == end - begin) continue;
    partly.push_back({begin, end, static_cast<int32_t>(first - positions.begin()), rows});
  }
  return partly;
}

}  // namespace kvblend::kernels
