#include "engine/kv/learned_correction.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"

namespace kvblend::kv {
namespace {

/// A layer's map without the directions at its end that are zeros: fits leave out what is not worth its cost.
struct UsedMap {
  int64_t rank = 0;
  std::vector<float> down;  // [channels, rank]
  absl::Span<const float> up;
};

UsedMap UsedMapOf(const LayerCorrection& layer, int64_t channels, int64_t rank) {
  UsedMap used;
  for (int64_t j = 0; j < rank; ++j) {
    const auto row = absl::MakeConstSpan(layer.up).subspan(j * channels, channels);
    if (std::any_of(row.begin(), row.end(), [](float x) { return x != 0; })) used.rank = j + 1;
  }
  used.up = absl::MakeConstSpan(layer.up).first(used.rank * channels);
  for (int64_t i = 0; i < channels; ++i) {
    const auto row = layer.down.begin() + i * rank;
    used.down.insert(used.down.end(), row, row + used.rank);
  }
  return used;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoadedCorrection>> LoadedCorrection::Load(const LearnedCorrection& correction,
                                                                         std::string version,
                                                                         kernels::Backend& backend) {
  auto loaded = std::make_unique<LoadedCorrection>();
  loaded->version = std::move(version);
  loaded->anchoring = correction.anchoring;
  for (const LayerCorrection& layer : correction.layers) {
    std::unique_ptr<kernels::KvCorrection>& of_backend = loaded->layers.emplace_back();
    if (layer.empty()) continue;
    const UsedMap map = UsedMapOf(layer, correction.channels(), correction.rank);
    KVBLEND_ASSIGN_OR_RETURN(of_backend, backend.CreateKvCorrection({.cols = correction.channels() / 2,
                                                                     .rank = map.rank,
                                                                     .scale = layer.scale,
                                                                     .offset = layer.offset,
                                                                     .down = map.down,
                                                                     .up = map.up}));
  }
  return loaded;
}

}  // namespace kvblend::kv
