// Names of stored chunks, as clients and operators write them. Plain values and pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace kvblend {

/// A SHA-256 value.
using Digest = std::array<uint8_t, 32>;

/// 64 lower-case hexadecimal digits.
std::string ToHex(const Digest& digest);
/// Reads exactly 64 hexadecimal digits of either case; kInvalidArgument otherwise.
absl::StatusOr<Digest> DigestFromHex(std::string_view hex);

/// A digest with a meaning, so that the two kinds of key can't be mixed up.
template <typename Kind>
class Key {
 public:
  Key() : digest_{} {}
  explicit Key(const Digest& digest) : digest_(digest) {}

  const Digest& digest() const { return digest_; }
  std::string ToHex() const { return kvblend::ToHex(digest_); }
  static absl::StatusOr<Key> FromHex(std::string_view hex) {
    absl::StatusOr<Digest> digest = DigestFromHex(hex);
    if (!digest.ok()) return digest.status();
    return Key(*digest);
  }

  friend bool operator==(const Key&, const Key&) = default;
  friend bool operator<(const Key& a, const Key& b) { return a.digest_ < b.digest_; }
  template <typename H>
  friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.digest_);
  }

 private:
  Digest digest_;
};

/// Names one stored entry: model, format, namespace, anchor and tokens.
using ChunkKey = Key<struct ChunkKeyKind>;
/// The same without the anchor: equal for all entries of one chunk that differ only in what stood before it.
using ContentKey = Key<struct ContentKeyKind>;

}  // namespace kvblend
