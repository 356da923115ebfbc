#include "engine/kv/learned_correction.h"

#include <utility>

#include "base/status_macros.h"

namespace kvblend::kv {

absl::StatusOr<std::unique_ptr<LoadedCorrection>> LoadedCorrection::Load(const LearnedCorrection& correction,
                                                                         std::string version,
                                                                         kernels::Backend& backend) {
  auto loaded = std::make_unique<LoadedCorrection>();
  loaded->version = std::move(version);
  loaded->anchoring = correction.anchoring;
  for (const LayerCorrection& layer : correction.layers) {
    std::unique_ptr<kernels::KvCorrection>& of_backend = loaded->layers.emplace_back();
    if (layer.empty()) continue;
    KVBLEND_ASSIGN_OR_RETURN(of_backend, backend.CreateKvCorrection({.cols = correction.channels() / 2,
                                                                     .rank = correction.rank,
                                                                     .scale = layer.scale,
                                                                     .offset = layer.offset,
                                                                     .down = layer.down,
                                                                     .up = layer.up}));
  }
  return loaded;
}

}  // namespace kvblend::kv
