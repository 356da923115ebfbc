#include "engine/api/options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvblend {
namespace {

bool IsShare(double share) { return share > 0 && share <= 1; }

}  // namespace

int64_t NamespaceQuotas::BytesOf(std::string_view tenant_namespace, int64_t tier_bytes) const {
  const auto found = named.find(std::string(tenant_namespace));
  const double share = found == named.end() ? default_share : found->second;
  const int64_t of_share =
      share >= 1 ? tier_bytes : static_cast<int64_t>(share * static_cast<double>(tier_bytes));
  const auto limit = bytes.find(std::string(tenant_namespace));
  return limit == bytes.end() ? of_share : std::min(of_share, limit->second);
}

std::string NamespaceQuotas::Describe(std::string_view tenant_namespace, int64_t tier_bytes) const {
  const int64_t may_fill = BytesOf(tenant_namespace, tier_bytes);
  const auto limit = bytes.find(std::string(tenant_namespace));
  return absl::StrCat(
      "namespace '", std::string(tenant_namespace), "' may fill ", may_fill, " bytes",
      limit != bytes.end() && limit->second == may_fill ? " (store_bytes of its tenant)" : "");
}

absl::Status NamespaceQuotas::Check() const {
  if (!IsShare(default_share)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the share of the chunk store that a namespace may fill is ", default_share,
                     "; allowed: above 0, at most 1"));
  }
  for (const auto& [name, share] : named) {
    if (IsShare(share)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the share of the chunk store that namespace '", name,
                                                   "' may fill is ", share, "; allowed: above 0, at most 1"));
  }
  return absl::OkStatus();
}

}  // namespace kvblend
