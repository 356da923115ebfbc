#include "engine/kv/learned_correction.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"

namespace kvblend::kv {
namespace {

/// The first `used` of the `rank` columns of `down`.
std::vector<float> UsedDown(const LayerCorrection& layer, int64_t rank, int64_t used) {
  std::vector<float> down;
  if (used == 0) return down;
  for (auto row = layer.down.begin(); row != layer.down.end(); row += rank) {
    down.insert(down.end(), row, row + used);
  }
  return down;
}

}  // namespace

int64_t UsedRank(const LayerCorrection& layer, int64_t rank) {
  const auto last = std::find_if(layer.up.rbegin(), layer.up.rend(), [](float x) { return x != 0; });
  const auto channels = static_cast<int64_t>(layer.scale.size());
  return last == layer.up.rend() ? 0 : std::min(rank, (layer.up.rend() - last - 1) / channels + 1);
}

absl::StatusOr<std::unique_ptr<LoadedCorrection>> LoadedCorrection::Load(const LearnedCorrection& correction,
                                                                         std::string version,
                                                                         kernels::Backend& backend) {
  auto loaded = std::make_unique<LoadedCorrection>();
  loaded->version = std::move(version);
  loaded->anchoring = correction.anchoring;
  for (const LayerCorrection& layer : correction.layers) {
    std::unique_ptr<kernels::KvCorrection>& of_backend = loaded->layers.emplace_back();
    if (layer.empty()) continue;
    // Fits leave zeros for directions that are not worth their cost.
    const int64_t rank = UsedRank(layer, correction.rank);
    const std::vector<float> down = UsedDown(layer, correction.rank, rank);
    KVBLEND_ASSIGN_OR_RETURN(of_backend,
                             backend.CreateKvCorrection(
                                 {.cols = correction.channels() / 2,
                                  .rank = rank,
                                  .scale = layer.scale,
                                  .offset = layer.offset,
                                  .down = down,
                                  .up = absl::MakeConstSpan(layer.up).first(rank * correction.channels())}));
  }
  return loaded;
}

}  // namespace kvblend::kv
