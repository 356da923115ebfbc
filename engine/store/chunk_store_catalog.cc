// The part of ChunkStore that operators see: looking at entries, pinning and erasing them.
#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/store/chunk_store.h"

namespace kvblend::store {
namespace {

/// How long pinning waits for an entry to reach the lower tier.
constexpr absl::Duration kPinWait = absl::Seconds(10);

bool InNamespace(NamespaceFilter filter, const ChunkAddress& address) {
  return !filter.has_value() || address.tenant_namespace == *filter;
}

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
  {
    absl::MutexLock lock(&mutex_);
    const Entry* entry = FindLocked(filter, key);
    if (entry != nullptr) return InfoOf(*entry);
  }
  std::optional<ChunkInfo> below = lower_.Stat(filter, key);
  if (!below.has_value()) return NotFound(key);
  return *std::move(below);
}

std::vector<ChunkInfo> ChunkStore::ListHost(NamespaceFilter filter,
                                            const std::optional<NamespaceAndKey>& after,
                                            int64_t limit) const {
  std::vector<ChunkInfo> found;
  absl::MutexLock lock(&mutex_);
  auto it = after.has_value() ? by_namespace_.upper_bound(*after)
                              : by_namespace_.lower_bound(NamespaceAndKey(filter.value_or(""), ChunkKey()));
  for (; it != by_namespace_.end() && static_cast<int64_t>(found.size()) < limit; ++it) {
    if (filter.has_value() && it->first.first != *filter) break;
    found.push_back(InfoOf(*it->second));
  }
  return found;
}

absl::StatusOr<ChunkPage> ChunkStore::List(NamespaceFilter filter, std::string_view page_token,
                                           int32_t page_size) const {
  if (page_size < 1 || page_size > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", page_size, "; allowed: 1 to ", kMaxPageSize));
  }
  std::optional<NamespaceAndKey> after;
  if (!page_token.empty()) {
    absl::StatusOr<NamespaceAndKey> decoded = DecodePageToken(page_token);
    if (!decoded.ok()) return decoded.status();
    if (filter.has_value() && decoded->first != *filter) {
      return absl::InvalidArgumentError("page_token belongs to a list of another namespace");
    }
    after = *std::move(decoded);
  }
  // One more than the page holds tells whether it is the last one.
  const std::vector<ChunkInfo> host = ListHost(filter, after, page_size + 1);
  const std::vector<ChunkInfo> below = lower_.List(filter, after, page_size + 1);
  ChunkPage page;
  page.chunks.reserve(host.size() + below.size());
  // Both are in order; of an entry that is in both, host memory's.
  std::set_union(host.begin(), host.end(), below.begin(), below.end(), std::back_inserter(page.chunks),
                 [](const ChunkInfo& a, const ChunkInfo& b) {
                   return std::tie(a.tenant_namespace, a.key) < std::tie(b.tenant_namespace, b.key);
                 });
  if (static_cast<int64_t>(page.chunks.size()) > page_size) {
    page.chunks.erase(page.chunks.begin() + page_size, page.chunks.end());
    page.next_page_token = EncodePageToken(page.chunks.back().tenant_namespace, page.chunks.back().key);
  }
  return page;
}

bool ChunkStore::Erase(NamespaceFilter filter, const ChunkKey& key) {
  bool found = false;
  const auto take_out = [&] {
    Deferred deferred;
    {
      absl::MutexLock lock(&mutex_);
      if (Entry* entry = FindLocked(filter, key); entry != nullptr) {
        found = true;
        TakeOut(entry, deferred);
      }
    }
    deferred.Run();
  };
  take_out();
  // Only resident entries are queued for a tier: from here on nothing of it is written.
  lower_.CancelWrites(
      [&](const ChunkAddress& address) { return address.key == key && InNamespace(filter, address); });
  found |= lower_.Erase(filter, key);
  take_out();  // a lookup may have found it below meanwhile
  absl::MutexLock lock(&mutex_);
  stats_.erased += found ? 1 : 0;
  return found;
}

int64_t ChunkStore::EraseContent(NamespaceFilter filter, const ContentKey& content_key) {
  lower_.CancelWrites([&](const ChunkAddress& address) {
    return address.content_key == content_key && InNamespace(filter, address);
  });
  int64_t num_erased = 0;
  while (true) {
    std::optional<ChunkKey> next;
    {
      absl::MutexLock lock(&mutex_);
      for (auto it = by_content_.lower_bound({content_key, false, ChunkKey()});
           it != by_content_.end() && it->first.content_key == content_key && !next.has_value(); ++it) {
        if (!filter.has_value() || it->second->address.tenant_namespace == *filter) next = it->first.key;
      }
    }
    if (!next.has_value()) {
      const std::optional<ContentMatch> below =
          lower_.FindAnyAnchor(absl::MakeConstSpan(&content_key, 1), absl::Now() + options_.lookup_budget)
              .front();
      if (below.has_value()) next = below->key;
    }
    if (!next.has_value() || !Erase(filter, *next)) return num_erased;
    ++num_erased;
  }
}

int64_t ChunkStore::Clear(NamespaceFilter filter) {
  lower_.CancelWrites([&](const ChunkAddress& address) { return InNamespace(filter, address); });
  int64_t num_erased = 0;
  std::string page_token;
  do {
    const absl::StatusOr<ChunkPage> page = List(filter, page_token, kMaxPageSize);
    for (const ChunkInfo& info : page->chunks) num_erased += Erase(filter, info.key) ? 1 : 0;
    page_token = page->next_page_token;
  } while (!page_token.empty());
  return num_erased;
}

absl::Status ChunkStore::Pin(NamespaceFilter filter, const ChunkKey& key) {
  // What is on its way must arrive, or the pin below would be refused.
  lower_.WaitUntilWritten(key, absl::Now() + kPinWait).IgnoreError();
  absl::Status below = lower_.SetPinned(filter, key, true);
  absl::MutexLock lock(&mutex_);
  Entry* entry = FindLocked(filter, key);
  if (entry == nullptr) return below;
  if (entry->pinned) return absl::OkStatus();
  if (absl::Status s = CheckPinLimit(entry->bytes); !s.ok()) return s;
  entry->pinned = true;
  ++stats_.pinned_entries;
  stats_.pinned_bytes += entry->bytes;
  UpdateEvictability(entry);
  return absl::OkStatus();
}

absl::Status ChunkStore::Unpin(NamespaceFilter filter, const ChunkKey& key) {
  lower_.WaitUntilWritten(key, absl::Now() + kPinWait).IgnoreError();
  absl::Status below = lower_.SetPinned(filter, key, false);
  absl::MutexLock lock(&mutex_);
  Entry* entry = FindLocked(filter, key);
  if (entry == nullptr) return below;
  if (!entry->pinned) return absl::OkStatus();
  entry->pinned = false;
  --stats_.pinned_entries;
  stats_.pinned_bytes -= entry->bytes;
  UpdateEvictability(entry);
  return absl::OkStatus();
}

StoreStats ChunkStore::Stats() const {
  const WriteBehind::Stats writes = lower_.write_stats();
  absl::MutexLock lock(&mutex_);
  StoreStats stats = stats_;
  stats.idle_bytes = eviction_queue_.bytes();
  stats.reservations = static_cast<int64_t>(reservations_.size());
  stats.queued_writes = writes.queued_entries;
  stats.queued_write_bytes = writes.queued_bytes;
  stats.written_entries = writes.written;
  stats.dropped_writes = writes.dropped;
  stats.failed_writes = writes.failed;
  return stats;
}

}  // namespace kvblend::store
