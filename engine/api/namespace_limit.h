// How errors about a namespace's limit in the chunk store begin. The engine writes them so, and the server recognises them by
// it: a tenant may be told of its own limit, but not of sums over all tenants.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace kvblend {

inline std::string NamespaceMayFill(std::string_view tenant_namespace) {
  return absl::StrCat("namespace '", std::string(tenant_namespace), "' may fill ");
}

}  // namespace kvblend
