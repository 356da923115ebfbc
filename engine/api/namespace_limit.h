// That a chunk was refused by the limit of its namespace: travels with the status. A tenant may be told of
// its own limit, but not of sums over all tenants, and the server tells them apart by this.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"

namespace kvblend {

inline constexpr char kNamespaceLimitPayload[] = "kvblend/namespace-limit";

/// `status` must be an error.
inline absl::Status WithNamespaceLimit(absl::Status status, std::string_view tenant_namespace) {
  status.SetPayload(kNamespaceLimitPayload, absl::Cord(std::string(tenant_namespace)));
  return status;
}

/// Whether it is this namespace's limit that refused.
inline bool IsLimitOfNamespace(const absl::Status& status, std::string_view tenant_namespace) {
  const auto payload = status.GetPayload(kNamespaceLimitPayload);
  return payload.has_value() && *payload == std::string(tenant_namespace);
}

}  // namespace kvblend
