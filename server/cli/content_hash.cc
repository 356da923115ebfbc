#include "server/cli/content_hash.h"

#include <xxhash.h>

#include "absl/strings/str_format.h"

namespace kvblend::server::cli {

std::string ContentHash(std::string_view content) {
  const XXH128_hash_t hash = XXH3_128bits(content.data(), content.size());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace kvblend::server::cli
