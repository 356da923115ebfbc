// How much of a tier one tenant namespace may fill.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace kvblend::store {

/// Shares of a tier's bytes. A namespace that has used up its share gives up its own entries for new ones;
/// the others' stay.
struct NamespaceQuotas {
  double default_share = 1.0;                // of every namespace that is not named; (0, 1]
  std::map<std::string, double> named = {};  // (0, 1]

  bool limited() const { return default_share < 1 || !named.empty(); }
  int64_t BytesOf(std::string_view tenant_namespace, int64_t tier_bytes) const;
  /// kInvalidArgument naming the namespace, its share and what is allowed.
  absl::Status Check() const;
};

}  // namespace kvblend::store
