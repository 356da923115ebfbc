// The part of ChunkStore that operators see: looking at entries, pinning and erasing them.
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "engine/store/chunk_store.h"

namespace kvblend::store {
namespace {

absl::Status NotFound(const ChunkKey& key) {
  return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not in the store"));
}

/// The last entry of a page: its key, then its namespace, all in hexadecimal.
std::string EncodePageToken(std::string_view tenant_namespace, const ChunkKey& key) {
  return absl::StrCat(key.ToHex(),
                      absl::BytesToHexString({tenant_namespace.data(), tenant_namespace.size()}));
}

absl::StatusOr<std::pair<std::string, ChunkKey>> DecodePageToken(std::string_view token) {
  const absl::Status invalid = absl::InvalidArgumentError("page_token is not one that List returned");
  constexpr size_t kKeyDigits = 2 * sizeof(Digest);
  if (token.size() < kKeyDigits || token.size() % 2 != 0) return invalid;
  const absl::StatusOr<ChunkKey> key = ChunkKey::FromHex(token.substr(0, kKeyDigits));
  const std::string_view hex = token.substr(kKeyDigits);
  if (!key.ok() || hex.find_first_not_of("0123456789abcdef") != std::string_view::npos) return invalid;
  return std::make_pair(absl::HexStringToBytes({hex.data(), hex.size()}), *key);
}

}  // namespace

std::string_view Name(Tier tier) {
  switch (tier) {
    case Tier::kHostMemory:
      return "host_memory";
    case Tier::kDisk:
      return "disk";
  }
  return "?";
}

ChunkInfo ChunkStore::InfoOf(const Entry& entry) {
  return {.key = entry.address.key,
          .content_key = entry.address.content_key,
          .anchor_hash = entry.address.anchor_hash,
          .tenant_namespace = entry.address.tenant_namespace,
          .label = entry.label,
          .num_tokens = entry.address.num_tokens,
          .bytes = entry.bytes,
          .tier = Tier::kHostMemory,
          .pinned = entry.pinned,
          .hits = entry.hits,
          .compute_cost_seconds = entry.compute_cost_seconds,
          .created = entry.created,
          .last_used = entry.last_used};
}

ChunkStore::Entry* ChunkStore::FindLocked(NamespaceFilter filter, const ChunkKey& key) const {
  Entry* entry = FindLocked(key);
  if (entry == nullptr || (filter.has_value() && entry->address.tenant_namespace != *filter)) return nullptr;
  return entry;
}

absl::StatusOr<ChunkInfo> ChunkStore::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = FindLocked(filter, key);
  if (entry == nullptr) return NotFound(key);
  return InfoOf(*entry);
}

absl::StatusOr<ChunkPage> ChunkStore::List(NamespaceFilter filter, std::string_view page_token,
                                           int32_t page_size) const {
  if (page_size < 1 || page_size > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", page_size, "; allowed: 1 to ", kMaxPageSize));
  }
  NamespaceAndKey after(filter.value_or(""), ChunkKey());
  if (!page_token.empty()) {
    absl::StatusOr<NamespaceAndKey> decoded = DecodePageToken(page_token);
    if (!decoded.ok()) return decoded.status();
    if (filter.has_value() && decoded->first != *filter) {
      return absl::InvalidArgumentError("page_token belongs to a list of another namespace");
    }
    after = *std::move(decoded);
  }
  ChunkPage page;
  absl::MutexLock lock(&mutex_);
  auto it = page_token.empty() ? by_namespace_.lower_bound(after) : by_namespace_.upper_bound(after);
  for (; it != by_namespace_.end(); ++it) {
    if (filter.has_value() && it->first.first != *filter) break;
    if (static_cast<int32_t>(page.chunks.size()) == page_size) {
      const ChunkInfo& last = page.chunks.back();
      page.next_page_token = EncodePageToken(last.tenant_namespace, last.key);
      break;
    }
    page.chunks.push_back(InfoOf(*it->second));
  }
  return page;
}

bool ChunkStore::Erase(NamespaceFilter filter, const ChunkKey& key) {
  Deferred deferred;
  bool found = false;
  {
    absl::MutexLock lock(&mutex_);
    Entry* entry = FindLocked(filter, key);
    found = entry != nullptr;
    if (found) {
      ++stats_.erased;
      TakeOut(entry, deferred);
    }
  }
  deferred.Run();
  return found;
}

int64_t ChunkStore::EraseContent(NamespaceFilter filter, const ContentKey& content_key) {
  Deferred deferred;
  int64_t num_erased = 0;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<Entry*> found;
    for (auto it = by_content_.lower_bound({content_key, false, ChunkKey()});
         it != by_content_.end() && it->first.content_key == content_key; ++it) {
      if (!filter.has_value() || it->second->address.tenant_namespace == *filter) found.push_back(it->second);
    }
    for (Entry* entry : found) TakeOut(entry, deferred);
    num_erased = static_cast<int64_t>(found.size());
    stats_.erased += num_erased;
  }
  deferred.Run();
  return num_erased;
}

int64_t ChunkStore::Clear(NamespaceFilter filter) {
  Deferred deferred;
  int64_t num_erased = 0;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<Entry*> found;
    for (auto it = by_namespace_.lower_bound(NamespaceAndKey(filter.value_or(""), ChunkKey()));
         it != by_namespace_.end() && (!filter.has_value() || it->first.first == *filter); ++it) {
      found.push_back(it->second);
    }
    for (Entry* entry : found) TakeOut(entry, deferred);
    num_erased = static_cast<int64_t>(found.size());
    stats_.erased += num_erased;
  }
  deferred.Run();
  return num_erased;
}

absl::Status ChunkStore::Pin(NamespaceFilter filter, const ChunkKey& key) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = FindLocked(filter, key);
  if (entry == nullptr) return NotFound(key);
  if (entry->pinned) return absl::OkStatus();
  if (absl::Status s = CheckPinLimit(entry->bytes); !s.ok()) return s;
  entry->pinned = true;
  ++stats_.pinned_entries;
  stats_.pinned_bytes += entry->bytes;
  UpdateEvictability(entry);
  return absl::OkStatus();
}

absl::Status ChunkStore::Unpin(NamespaceFilter filter, const ChunkKey& key) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = FindLocked(filter, key);
  if (entry == nullptr) return NotFound(key);
  if (!entry->pinned) return absl::OkStatus();
  entry->pinned = false;
  --stats_.pinned_entries;
  stats_.pinned_bytes -= entry->bytes;
  UpdateEvictability(entry);
  return absl::OkStatus();
}

StoreStats ChunkStore::Stats() const {
  absl::MutexLock lock(&mutex_);
  StoreStats stats = stats_;
  stats.idle_bytes = eviction_queue_.bytes();
  stats.reservations = static_cast<int64_t>(reservations_.size());
  return stats;
}

}  // namespace kvblend::store
