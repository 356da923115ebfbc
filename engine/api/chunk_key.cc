#include "engine/api/chunk_key.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvblend {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string ToHex(const Digest& digest) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

absl::StatusOr<Digest> DigestFromHex(std::string_view hex) {
  Digest digest;
  if (hex.size() != 2 * digest.size()) {
    return absl::InvalidArgumentError(absl::StrCat("key has ", hex.size(), " characters; a key is ",
                                                   2 * digest.size(), " hexadecimal digits"));
  }
  for (size_t i = 0; i < digest.size(); ++i) {
    const int high = HexValue(hex[2 * i]);
    const int low = HexValue(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      // Without the key itself: whatever it is, a client wrote it, and it would be in the log.
      return absl::InvalidArgumentError(absl::StrCat("key is not hexadecimal at character ",
                                                     high < 0 ? 2 * i : 2 * i + 1, "; a key is ",
                                                     2 * digest.size(), " hexadecimal digits"));
    }
    digest[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return digest;
}

}  // namespace kvblend
