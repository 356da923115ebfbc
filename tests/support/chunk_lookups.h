// The chunk store for tests that ask for one chunk at a time, or have one lower tier.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/store/chunk_store.h"

namespace kvblend::store {

inline std::optional<ChunkHandle> LookupOne(ChunkStore& chunk_store, const ChunkKey& key,
                                            PromptReads* reads = nullptr) {
  return std::move(chunk_store.Lookup({key}, reads).front());
}

inline std::optional<ChunkHandle> LookupOneAnyAnchor(ChunkStore& chunk_store, const ContentKey& content_key) {
  return std::move(chunk_store.LookupAnyAnchor({content_key}).front());
}

inline std::vector<std::unique_ptr<LowerTier>> Only(std::unique_ptr<LowerTier> tier) {
  std::vector<std::unique_ptr<LowerTier>> tiers;
  tiers.push_back(std::move(tier));
  return tiers;
}

}  // namespace kvblend::store
