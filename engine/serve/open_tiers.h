// From an engine's settings to the tiers below host memory.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/options.h"
#include "engine/store/lower_tier.h"

namespace kvblend {

/// Opens the tiers that the options name, the nearest first. kFailedPrecondition: another server has the
/// folder; otherwise what is wrong with the folder or the certificates. That no Redis answers
/// is no error. REQUIRES: CheckEngineOptions(options) is OK.
absl::StatusOr<std::vector<std::unique_ptr<store::LowerTier>>> OpenLowerTiers(const EngineOptions& options);

}  // namespace kvblend
