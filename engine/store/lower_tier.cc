#include "engine/store/lower_tier.h"

#include "absl/strings/str_cat.h"

namespace kvblend::store {

EntryHeader LowerTier::HeaderOf(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options,
                                absl::Time now) {
  const absl::Time created = options.created == absl::InfinitePast() ? now : options.created;
  return {.address = address,
          .label = options.label,
          .compute_cost_seconds = options.compute_cost_seconds,
          .created = absl::FromUnixMicros(absl::ToUnixMicros(created)),
          .layers = ChecksumsOf(kv)};
}

std::vector<bool> LowerTier::Lack(absl::Span<const ChunkKey> keys, const KvFormat& /*format*/) {
  std::vector<bool> lacking;
  lacking.reserve(keys.size());
  for (const ChunkKey& key : keys) lacking.push_back(!Contains(key));
  return lacking;
}

std::vector<std::optional<ChunkInfo>> LowerTier::StatAll(NamespaceFilter filter,
                                                         absl::Span<const ChunkKey> keys) const {
  std::vector<std::optional<ChunkInfo>> infos;
  infos.reserve(keys.size());
  for (const ChunkKey& key : keys) infos.push_back(Stat(filter, key));
  return infos;
}

std::vector<absl::StatusOr<bool>> LowerTier::EraseAll(NamespaceFilter filter,
                                                      absl::Span<const ChunkKey> keys) {
  std::vector<absl::StatusOr<bool>> erased;
  erased.reserve(keys.size());
  for (const ChunkKey& key : keys) erased.push_back(Erase(filter, key));
  return erased;
}

absl::Status LowerTierEntry::CheckRead(int32_t layer, absl::Span<const std::byte> out) const {
  const int32_t num_layers = header().address.format.num_layers;
  if (layer < 0 || layer >= num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layer is ", layer, "; allowed: 0 to ", num_layers - 1));
  }
  const int64_t bytes = header().layer_bytes();
  if (static_cast<int64_t>(out.size()) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer for a layer is ", out.size(), " bytes; allowed: ", bytes));
  }
  if (reinterpret_cast<uintptr_t>(out.data()) % ChunkKv::kSectionAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer for a layer is not aligned to ", ChunkKv::kSectionAlignment, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace kvblend::store
