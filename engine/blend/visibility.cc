#include "engine/blend/visibility.h"

#include <algorithm>

namespace kvblend::blend {

std::vector<int32_t> WindowsOf(const model::ModelConfig& config) {
  std::vector<int32_t> windows;
  for (const model::LayerConfig& layer : config.layers) windows.push_back(layer.sliding_window);
  return windows;
}

// Only the last rows ever matter: a window looks back from them, so the rows that it adds are next to them.
std::vector<FirstNeeded> FirstNeededPositions(Windows windows, int32_t prompt_tokens) {
  std::vector<FirstNeeded> first(windows.size());
  int32_t row = prompt_tokens - 1;
  for (size_t layer = windows.size(); layer-- > 0;) {
    const int32_t window = windows[layer];
    first[layer] = {.kv = window == 0 ? 0 : std::max(0, row - window + 1), .row = row};
    row = first[layer].kv;
  }
  return first;
}

absl::Span<const int32_t> Readers::In(int32_t layer) const {
  if (first_needed.empty()) return positions;
  const auto first = std::lower_bound(positions.begin(), positions.end(), first_needed[layer].row);
  return positions.subspan(first - positions.begin());
}

bool AnySees(absl::Span<const int32_t> readers, int32_t window, int32_t begin, int32_t end) {
  if (begin >= end) return false;
  const auto reader = std::lower_bound(readers.begin(), readers.end(), begin);
  return reader != readers.end() && (window == 0 || *reader - (end - 1) < window);
}

}  // namespace kvblend::blend
