// What a server's tiers below main memory say about themselves.
#pragma once

#include <cstdint>
#include <string>

#include "kvblend/v1/admin.pb.h"

namespace kvblend::server::cli {

/// Null when the server has no such tier.
inline const v1::TierInfo* FindTier(const v1::GetInfoResponse& info, v1::Tier tier) {
  for (const v1::TierInfo& candidate : info.tiers()) {
    if (candidate.tier() == tier) return &candidate;
  }
  return nullptr;
}

/// A whole number by its name, such as "entries"; 0 when the tier has none of that name.
inline int64_t TierStat(const v1::TierInfo& tier, const std::string& name) {
  const auto found = tier.stats().find(name);
  return found == tier.stats().end() ? 0 : static_cast<int64_t>(found->second);
}

}  // namespace kvblend::server::cli
