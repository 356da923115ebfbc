#include "engine/store/disk/disk_tier.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"

namespace kvblend::store {

absl::StatusOr<std::unique_ptr<DiskTier>> DiskTier::Open(Options options) {
  while (options.path.size() > 1 && options.path.back() == '/') options.path.pop_back();
  if (options.path.empty()) return absl::InvalidArgumentError("disk tier: path is empty");
  for (const auto& [name, value] :
       {std::pair("quota_bytes", options.quota_bytes), std::pair("min_free_bytes", options.min_free_bytes),
        std::pair("max_quarantined_files", options.max_quarantined_files)}) {
    if (value < 0) {
      return absl::InvalidArgumentError(absl::StrCat("disk tier: ", name, " is ", value, "; allowed: >= 0"));
    }
  }
  KVBLEND_RETURN_IF_ERROR(options.namespace_quotas.Check());
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(options)));
  KVBLEND_RETURN_IF_ERROR(tier->Start());
  return tier;
}

DiskTier::DiskTier(Options options)
    : options_(std::move(options)),
      paths_{options_.path},
      fs_(*options_.fs),
      read_health_("reading from", options_.path),
      write_health_("writing to", options_.path),
      index_(options_.namespace_quotas.limited()) {}

DiskTier::~DiskTier() = default;

std::optional<DiskTier::Index::Slot> DiskTier::FindLocked(NamespaceFilter filter, const ChunkKey& key) const {
  const std::optional<Index::Slot> slot = index_.Find(key);
  if (slot.has_value() && filter.has_value() && *index_.at(*slot).tenant_namespace != *filter) {
    return std::nullopt;
  }
  return slot;
}

std::optional<ChunkInfo> DiskTier::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<Index::Slot> slot = FindLocked(filter, key);
  if (!slot.has_value()) return std::nullopt;
  return index_.InfoOf(*slot);
}

bool DiskTier::Contains(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  return index_.Find(key).has_value();
}

std::optional<ContentMatch> DiskTier::FindAnyAnchor(const ContentKey& content_key) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<Index::Slot> slot = index_.FindAnyAnchor(content_key);
  if (!slot.has_value()) return std::nullopt;
  return ContentMatch{.key = index_.at(*slot).key, .isolated = index_.at(*slot).isolated};
}

std::vector<std::optional<ContentMatch>> DiskTier::FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                 absl::Time /*deadline*/) const {
  std::vector<std::optional<ContentMatch>> found;
  found.reserve(content_keys.size());
  for (const ContentKey& content_key : content_keys) found.push_back(FindAnyAnchor(content_key));
  return found;
}

std::vector<ChunkInfo> DiskTier::List(NamespaceFilter filter,
                                      const std::optional<std::pair<std::string, ChunkKey>>& after,
                                      int64_t limit) const {
  absl::MutexLock lock(&mutex_);
  return index_.List(filter, after, limit);
}

DiskTierStats DiskTier::Stats() const {
  using State = internal::DiskHealth::State;
  const State writing = write_health_.state();
  absl::MutexLock lock(&mutex_);
  DiskTierStats stats = stats_;
  stats.entries = index_.size();
  stats.bytes = index_.bytes();
  stats.quota_bytes = options_.quota_bytes;
  stats.pinned_entries = index_.pinned_entries();
  stats.pinned_bytes = index_.pinned_bytes();
  stats.disk_full = writing == State::kFull;
  stats.write_failing = writing == State::kFailing;
  stats.read_failing = read_health_.state() != State::kWorking;
  stats.reader = reads_->name();
  return stats;
}

}  // namespace kvblend::store
