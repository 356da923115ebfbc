#include "engine/kv/sealed_bytes.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>

#include "absl/strings/str_cat.h"

namespace kvblend::kv {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

std::string LearnerPreamble(std::string_view magic, uint32_t version, const LearnerOptions& options) {
  std::string bytes(magic);
  PutValue(version, bytes);
  PutValue(static_cast<uint32_t>(options.anchoring == Anchoring::kIsolated), bytes);
  PutValues<uint8_t>(options.model_fingerprint, bytes);
  PutValue(options.encoding, bytes);
  PutValue(options.num_layers, bytes);
  PutValue(options.num_kv_heads, bytes);
  PutValue(static_cast<uint16_t>(options.head_dim), bytes);
  PutValue(static_cast<uint16_t>(KindOfMoments(options)), bytes);
  return bytes;
}

void Seal(std::string& bytes) { PutValue(uint64_t{XXH3_64bits(bytes.data(), bytes.size())}, bytes); }

absl::StatusOr<std::string_view> Unseal(std::string_view name, std::string_view preamble,
                                        std::string_view bytes) {
  const std::string_view magic = preamble.substr(0, 8);
  if (bytes.substr(0, magic.size()) != magic) {
    return absl::InvalidArgumentError(
        absl::StrCat("no ", std::string(name), ": it does not begin with ", std::string(magic)));
  }
  if (bytes.size() < kPreambleBytes + kSealBytes)
    return absl::InvalidArgumentError("it ends within its header");
  const std::string_view body = bytes.substr(0, bytes.size() - kSealBytes);
  std::string_view seal = bytes.substr(body.size());
  if (TakeValue<uint64_t>(seal) != XXH3_64bits(body.data(), body.size())) {
    return absl::InvalidArgumentError("the checksum does not fit: it is damaged");
  }
  if (bytes.substr(0, preamble.size()) != preamble) {
    return absl::InvalidArgumentError(
        "it is of another version, model, anchoring, chunk format, size or memory budget");
  }
  return body.substr(preamble.size());
}

}  // namespace kvblend::kv
