// Names of the files in a disk tier's folder. Private to this folder.
//
//     <root>/lock
//     <root>/entries/ab/cd/<64 hexadecimal digits of the key, abcd first>.kvb1
//     <root>/entries/ab/cd/<64 digits>.pin          there is one exactly while the entry is pinned
//     <root>/tmp/                                   what is being written; emptied at start
//     <root>/quarantine/<64 digits>.kvb1            damaged entries, for people to look at
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/api/chunk_key.h"

namespace kvblend::store::internal {

struct DiskPaths {
  std::string root;

  std::string Lock() const { return absl::StrCat(root, "/lock"); }
  std::string Entries() const { return absl::StrCat(root, "/entries"); }
  std::string Temporary() const { return absl::StrCat(root, "/tmp"); }
  std::string Quarantine() const { return absl::StrCat(root, "/quarantine"); }
  std::string Temporary(const ChunkKey& key, uint64_t number) const {
    return absl::StrCat(root, "/tmp/", key.ToHex(), ".", number);
  }
  std::string Quarantine(const ChunkKey& key) const {
    return absl::StrCat(root, "/quarantine/", key.ToHex(), ".kvb1");
  }
  /// entries/ab
  std::string OuterFolder(const ChunkKey& key) const {
    return absl::StrCat(root, "/entries/", key.ToHex().substr(0, 2));
  }
  /// entries/ab/cd
  std::string Folder(const ChunkKey& key) const {
    const std::string hex = key.ToHex();
    return absl::StrCat(root, "/entries/", hex.substr(0, 2), "/", hex.substr(2, 2));
  }
  std::string Entry(const ChunkKey& key) const {
    return absl::StrCat(Folder(key), "/", key.ToHex(), ".kvb1");
  }
  std::string Pin(const ChunkKey& key) const { return absl::StrCat(Folder(key), "/", key.ToHex(), ".pin"); }

  /// Whether a file in Temporary() is ours. The folder that a server is given may have had one of that name.
  static bool IsTemporaryName(std::string_view name) {
    const size_t dot = name.find('.');
    return dot == kKeyDigits && IsKey(name.substr(0, dot)) && dot + 1 < name.size() &&
           name.find_first_not_of("0123456789", dot + 1) == std::string_view::npos;
  }
  /// Whether a file in Quarantine() is ours.
  static bool IsQuarantineName(std::string_view name) {
    return name.size() == kKeyDigits + 5 && name.ends_with(".kvb1") && IsKey(name.substr(0, kKeyDigits));
  }
  /// "ab": a folder of ours.
  static bool IsFolderName(std::string_view name) {
    return name.size() == 2 && IsLowerHex(name[0]) && IsLowerHex(name[1]);
  }
  /// The key that a file in folder `outer`/`inner` is named by, if it is one of ours; suffix: ".kvb1",
  /// ".pin".
  static std::optional<ChunkKey> KeyOf(std::string_view outer, std::string_view inner, std::string_view name,
                                       std::string_view suffix) {
    if (!name.ends_with(suffix)) return std::nullopt;
    name.remove_suffix(suffix.size());
    if (!IsKey(name) || name.substr(0, 2) != outer || name.substr(2, 2) != inner) return std::nullopt;
    const absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(name);
    if (!key.ok()) return std::nullopt;
    return *key;
  }

 private:
  static constexpr size_t kKeyDigits = 64;

  static bool IsKey(std::string_view name) {
    return name.size() == kKeyDigits && std::all_of(name.begin(), name.end(), IsLowerHex);
  }
  static bool IsLowerHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
};

}  // namespace kvblend::store::internal
