// Groups of layers have places for every layer, are of one kind each, and leave little unused.
#include "engine/kv/pages/layer_groups.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::kv {
namespace {

/// Layers that see everything behind every `num_windowed` with windows.
std::vector<int32_t> Alternating(int32_t num_layers, int32_t num_windowed, int32_t window) {
  std::vector<int32_t> windows(num_layers, window);
  for (int32_t layer = num_windowed; layer < num_layers; layer += num_windowed + 1) windows[layer] = 0;
  return windows;
}

TEST(LayerGroupsTest, ModelsOfOneKindAreOneGroup) {
  for (const int32_t window : {0, 4096}) {
    const LayerGroups groups = LayerGroups::Of(std::vector<int32_t>(30, window));
    EXPECT_EQ(groups.num_groups(), 1);
    EXPECT_EQ(groups.layers_per_group, 30);
    EXPECT_EQ(groups.largest_window(), window);
    for (int32_t layer = 0; layer < 30; ++layer) EXPECT_EQ(groups.layers[layer].slot, layer);
  }
}

TEST(LayerGroupsTest, ThoseOfModelsThatPeopleRun) {
  const auto shape = [](const std::vector<int32_t>& windows) {
    const LayerGroups groups = LayerGroups::Of(windows);
    return std::pair(groups.num_groups(), groups.layers_per_group);
  };
  EXPECT_EQ(shape(Alternating(18, 5, 512)), std::pair(6, 3)) << "Gemma 3 270M";
  EXPECT_EQ(shape(Alternating(26, 5, 512)), std::pair(13, 2))
      << "Gemma 3 1B: groups of 4 would leave 2 of 28 unused";
  EXPECT_EQ(shape(Alternating(34, 5, 1024)), std::pair(7, 5)) << "Gemma 3 4B";
  EXPECT_EQ(shape(Alternating(26, 1, 4096)), std::pair(2, 13)) << "Gemma 2 2B";
  EXPECT_EQ(shape(Alternating(24, 1, 128)), std::pair(2, 12)) << "gpt-oss 20B";
}

TEST(LayerGroupsTest, EveryLayerHasAPlaceOfItsOwnAmongItsKind) {
  std::mt19937 random(20261124);
  for (int round = 0; round < 500; ++round) {
    std::vector<int32_t> windows(1 + random() % 70);
    const auto share = random() % 8;
    for (int32_t& window : windows)
      window = random() % 8 < share ? 1 + static_cast<int32_t>(random() % 3) : 0;
    const auto num_layers = static_cast<int32_t>(windows.size());
    const LayerGroups groups = LayerGroups::Of(windows);
    ASSERT_EQ(groups.layers.size(), windows.size());
    std::set<std::pair<int32_t, int32_t>> places;
    std::vector<int32_t> largest(groups.num_groups(), 0);
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      const auto [group, slot] = groups.layers[layer];
      ASSERT_TRUE(group >= 0 && group < groups.num_groups() && slot >= 0 && slot < groups.layers_per_group);
      EXPECT_TRUE(places.emplace(group, slot).second);
      EXPECT_EQ(windows[layer] == 0, groups.windows[group] == 0);
      largest[group] = std::max(largest[group], windows[layer]);
    }
    EXPECT_EQ(groups.windows, largest);
    const int32_t unused = groups.num_groups() * groups.layers_per_group - num_layers;
    EXPECT_LE(unused, LayerGroups::kUnused * num_layers);
    EXPECT_EQ(groups.largest_window(), *std::max_element(windows.begin(), windows.end()));
  }
}

}  // namespace
}  // namespace kvblend::kv
