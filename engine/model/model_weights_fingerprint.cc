// Fingerprint: see model_weights.h for what it covers.
#define XXH_INLINE_ALL
#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "engine/model/files/mapped_file.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/model/model_weights.h"

namespace kvblend::model {
namespace {

// Builds the bytes to be hashed. Every field is preceded by its length, so that no two inputs give the same
// bytes.
class CanonicalBytes {
 public:
  void AddInteger(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(value >> shift & 255));
  }
  void AddText(std::string_view text) {
    AddInteger(text.size());
    bytes_.append(text);
  }
  void AddDigest(absl::Span<const std::byte> bytes) {
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
    XXH3_128bits_reset(state.get());
    // Releases memory piece by piece: a tensor need not fit beside the weights that were made of it.
    constexpr size_t kPiece = size_t{1} << 20;
    while (!bytes.empty()) {
      const absl::Span<const std::byte> piece = bytes.first(std::min(kPiece, bytes.size()));
      XXH3_128bits_update(state.get(), piece.data(), piece.size());
      ReleaseMappedPages(piece);
      bytes.remove_prefix(piece.size());
    }
    const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
    AddInteger(hash.low64);
    AddInteger(hash.high64);
  }
  void AddValue(const GgufEntry& entry);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

void CanonicalBytes::AddValue(const GgufEntry& entry) {
  AddInteger(static_cast<uint64_t>(entry.type));
  std::visit(
      [this](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string_view>) {
          AddText(value);
        } else if constexpr (std::is_same_v<T, GgufArray>) {
          AddInteger(static_cast<uint64_t>(value.element_type));
          AddText({reinterpret_cast<const char*>(value.scalars.data()), value.scalars.size()});
          AddInteger(value.strings.size());
          for (const std::string_view text : value.strings) AddText(text);
        } else if constexpr (std::is_same_v<T, double>) {
          AddInteger(std::bit_cast<uint64_t>(value));
        } else {
          AddInteger(static_cast<uint64_t>(value));
        }
      },
      entry.value);
}

}  // namespace

absl::StatusOr<std::array<uint8_t, 32>> Fingerprint(const GgufFile& file, bool short_rope) {
  const auto architecture = file.GetString("general.architecture");
  if (!architecture.ok()) return architecture.status();
  const std::string prefix = Concat(*architecture, ".");

  CanonicalBytes canonical;
  canonical.AddText("kvblend model fingerprint 1");
  canonical.AddText(*architecture);
  // What K goes through before it is stored, where that is more than the projection.
  const Architecture* row = FindArchitecture(*architecture);
  if (row != nullptr && row->qk_norm) canonical.AddText("K after its norm, before RoPE");
  if (short_rope) canonical.AddText("LongRoPE's frequencies for short contexts");
  std::vector<const GgufEntry*> entries;
  for (const GgufEntry& entry : file.metadata()) {
    if (entry.key.starts_with(prefix) || entry.key == "general.quantization_version")
      entries.push_back(&entry);
  }
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) { return a->key < b->key; });
  canonical.AddInteger(entries.size());
  for (const GgufEntry* entry : entries) {
    canonical.AddText(entry->key);
    canonical.AddValue(*entry);
  }

  std::vector<const GgufTensor*> tensors;
  for (const GgufTensor& tensor : file.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  canonical.AddInteger(tensors.size());
  for (const GgufTensor* tensor : tensors) {
    canonical.AddText(tensor->name);
    canonical.AddInteger(static_cast<uint64_t>(tensor->type));
    canonical.AddInteger(tensor->dims.size());
    for (const int64_t dim : tensor->dims) canonical.AddInteger(static_cast<uint64_t>(dim));
    canonical.AddDigest(tensor->data);
    if (tensor->made != nullptr) {
      canonical.AddText(tensor->made->recipe());
      for (const absl::Span<const std::byte> bytes : tensor->made->more()) canonical.AddDigest(bytes);
    }
    tensor->ReleasePages();
  }

  for (const GgufTensor* tensor : tensors) tensor->ReleasePages();

  std::array<uint8_t, 32> digest = {};
  if (EVP_Digest(canonical.bytes().data(), canonical.bytes().size(), digest.data(), nullptr, EVP_sha256(),
                 nullptr) != 1) {
    return absl::InternalError("SHA-256 failed");
  }
  return digest;
}

}  // namespace kvblend::model
