#include "engine/store/format/token_hash.h"

#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>

#include "engine/store/format/serialize.h"

namespace kvblend::store {

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
