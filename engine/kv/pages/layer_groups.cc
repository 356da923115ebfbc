#include "engine/kv/pages/layer_groups.h"

#include <algorithm>

namespace kvblend::kv {
namespace {

int32_t DivideUp(int32_t a, int32_t b) { return (a + b - 1) / b; }

/// How many layers a group has.
int32_t GroupSize(int32_t num_all, int32_t num_windowed) {
  if (num_all == 0 || num_windowed == 0) return num_all + num_windowed;
  const int32_t num_layers = num_all + num_windowed;
  for (int32_t size = std::min(num_all, num_windowed);; --size) {
    const int32_t slots = size * (DivideUp(num_all, size) + DivideUp(num_windowed, size));
    if (slots - num_layers <= LayerGroups::kUnused * num_layers) return size;  // at size 1 nothing is unused
  }
}

}  // namespace

LayerGroups LayerGroups::Of(absl::Span<const int32_t> windows) {
  const auto num_all = static_cast<int32_t>(std::count(windows.begin(), windows.end(), 0));
  LayerGroups groups;
  groups.layers_per_group = GroupSize(num_all, static_cast<int32_t>(windows.size()) - num_all);
  const int32_t num_groups_of_all = DivideUp(num_all, groups.layers_per_group);
  int32_t next_of_all = 0, next_windowed = num_groups_of_all * groups.layers_per_group;
  for (const int32_t window : windows) {
    const int32_t place = window == 0 ? next_of_all++ : next_windowed++;
    groups.layers.push_back({place / groups.layers_per_group, place % groups.layers_per_group});
  }
  groups.windows.resize(DivideUp(next_windowed, groups.layers_per_group));
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    int32_t& window = groups.windows[groups.layers[layer].group];
    window = std::max(window, windows[layer]);
  }
  return groups;
}

int32_t LayerGroups::largest_window() const { return *std::max_element(windows.begin(), windows.end()); }

}  // namespace kvblend::kv
