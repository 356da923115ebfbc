#include "engine/store/chunk_key.h"

#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/store/serialize.h"

namespace kvblend::store {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Digest Sha256(std::string_view bytes) {
  Digest digest;
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1 ||
      size != digest.size()) {
    // Only a broken or memory-starved crypto library comes here. A made-up key could serve one chunk's KV for
    // another's, so there is nothing to go on with.
    std::fputs("kvblend: OpenSSL cannot compute SHA-256\n", stderr);
    std::abort();
  }
  return digest;
}

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
      return absl::InvalidArgumentError(absl::StrCat("key '", absl::CHexEscape({hex.data(), hex.size()}),
                                                     "' is not hexadecimal at character ",
                                                     high < 0 ? 2 * i : 2 * i + 1));
    }
    digest[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return digest;
}

Digest HashTokens(absl::Span<const int32_t> token_ids) {
  Serializer out;
  out.String("kvblend token ids");
  out.U32(1);
  out.Tokens(token_ids);
  return Sha256(out.bytes());
}

const Digest& IsolatedAnchorHash() {
  static const Digest kHash = HashTokens({});
  return kHash;
}

}  // namespace kvblend::store
