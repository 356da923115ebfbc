// Which layers of a model keep their KV in the same pages. A layer with a sliding window needs no KV of
// tokens that its window has passed, one that sees everything needs it all, so they can't share pages: the
// layers form groups of one kind each, and a sequence has a list of pages for every group. All groups are
// equally large, so that a page of one is as good for any other, and there is one pool, one count of what is
// free, and nothing to divide between kinds beforehand.
//
// Gemma 3 270M has 3 layers that see everything and 15 with windows: six groups of 3. A model whose layers
// are all of one kind is one group.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace kvblend::kv {

struct LayerGroups {
  struct Place {
    int32_t group = 0;
    int32_t slot = 0;  // within the group, below layers_per_group
  };
  std::vector<Place> layers;     // where each layer's KV is
  std::vector<int32_t> windows;  // of each group: its layers' largest; 0: they see everything
  int32_t layers_per_group = 0;  // some may have one less

  /// `windows`: of each layer; 0: it sees everything. The fewest groups that leave at most kUnused of the
  /// memory unused.
  /// REQUIRES: there is a layer
  static LayerGroups Of(absl::Span<const int32_t> windows);
  static constexpr double kUnused = 0.05;

  int32_t num_groups() const { return static_cast<int32_t>(windows.size()); }
  /// 0: no group has one.
  int32_t largest_window() const;
};

}  // namespace kvblend::kv
