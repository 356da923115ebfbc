// The names of what the tier stores. docs/store-format.md documents them: other versions, and other programs,
// read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/chunk_key.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::store::redis {

/// The most that a reader takes for a header, whichever version wrote it.
inline constexpr int64_t kMaxHeaderBytes = int64_t{16} << 20;
/// Sections and the content index outlive the header by that much, at least.
inline constexpr int64_t kSlackSeconds = 60;

/// The keys of one entry; the braces keep them on one node.
class EntryKeys {
 public:
  explicit EntryKeys(const ChunkKey& key) : prefix_(absl::StrCat("kvb1:{", key.ToHex(), "}:")) {}
  std::string Header() const { return prefix_ + "header"; }
  std::string K(int32_t layer) const { return absl::StrCat(prefix_, layer, ":k"); }
  std::string V(int32_t layer) const { return absl::StrCat(prefix_, layer, ":v"); }
  std::vector<std::string> Sections(int32_t num_layers) const {
    std::vector<std::string> names;
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      names.push_back(K(layer));
      names.push_back(V(layer));
    }
    return names;
  }

 private:
  const std::string prefix_;
};

/// A sorted set, all scores 0, of ContentMembers.
inline std::string ContentIndexKey(const ContentKey& key) {
  return absl::StrCat("kvb1:content:{", key.ToHex(), "}");
}

/// In the order of ContentMatch: "a" anchored or "i" isolated, then the chunk key.
inline std::string ContentMember(const ContentMatch& match) {
  return absl::StrCat(match.isolated ? "i" : "a", match.key.ToHex());
}
inline std::optional<ContentMatch> ParseContentMember(std::string_view text) {
  if (text.empty() || (text[0] != 'a' && text[0] != 'i')) return std::nullopt;
  const absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(text.substr(1));
  if (!key.ok()) return std::nullopt;
  const ContentMatch match{.key = *key, .isolated = text[0] == 'i'};
  // One way to write it, or the order would not be ours.
  return ContentMember(match) == text ? std::optional(match) : std::nullopt;
}

}  // namespace kvblend::store::redis
