#include "engine/store/page_token.h"

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvblend::store::internal {

// The key, then the namespace, all in hexadecimal.
std::string EncodePageToken(const ChunkInfo& last) {
  return absl::StrCat(last.key.ToHex(), absl::BytesToHexString(last.tenant_namespace));
}

absl::StatusOr<std::optional<ListPlace>> DecodePageToken(NamespaceFilter filter, std::string_view token) {
  if (token.empty()) return std::nullopt;
  const absl::Status invalid = absl::InvalidArgumentError("page_token is not one that List returned");
  constexpr size_t kKeyDigits = 2 * sizeof(Digest);
  if (token.size() < kKeyDigits || token.size() % 2 != 0) return invalid;
  const absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(token.substr(0, kKeyDigits));
  const std::string_view hex = token.substr(kKeyDigits);
  if (!key.ok() || hex.find_first_not_of("0123456789abcdef") != std::string_view::npos) return invalid;
  std::string tenant_namespace = absl::HexStringToBytes({hex.data(), hex.size()});
  if (filter.has_value() && tenant_namespace != *filter) {
    return absl::InvalidArgumentError("page_token belongs to a list of another namespace");
  }
  return ListPlace(std::move(tenant_namespace), *key);
}

}  // namespace kvblend::store::internal
