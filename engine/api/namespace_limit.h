// How words about a namespace's share of the chunk store begin: written by the engine, and known again by who must tell a
// tenant's own limit from sums over all tenants.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace kvblend {

inline std::string NamespaceMayFill(std::string_view tenant_namespace) {
  return absl::StrCat("namespace '", std::string(tenant_namespace), "' may fill ");
}

}  // namespace kvblend
