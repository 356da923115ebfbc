// The chunk store as operators see it: what is in memory and in the tiers below, together.
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/chunk_store.h"
#include "engine/store/page_token.h"

namespace kvblend::store {

absl::StatusOr<ChunkInfo> ChunkStore::Stat(NamespaceFilter filter, const ChunkKey& key) const {
  {
    absl::MutexLock lock(&mutex_);
    const Entry* entry = index_.Find(filter, key);
    if (entry != nullptr) return internal::ChunkIndex::InfoOf(*entry);
  }
  std::optional<ChunkInfo> below = lower_.Stat(filter, key);
  if (below.has_value()) return *std::move(below);
  return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not in the store"));
}

std::vector<std::optional<ChunkInfo>> ChunkStore::StatAll(NamespaceFilter filter,
                                                          absl::Span<const ChunkKey> keys) const {
  std::vector<std::optional<ChunkInfo>> infos(keys.size());
  std::vector<ChunkKey> missing;
  std::vector<size_t> missing_at;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (const Entry* entry = index_.Find(filter, keys[i]); entry != nullptr) {
        infos[i] = internal::ChunkIndex::InfoOf(*entry);
      } else {
        missing.push_back(keys[i]);
        missing_at.push_back(i);
      }
    }
  }
  std::vector<std::optional<ChunkInfo>> below = lower_.StatAll(filter, missing);
  for (size_t i = 0; i < missing.size(); ++i) infos[missing_at[i]] = std::move(below[i]);
  return infos;
}

std::vector<bool> ChunkStore::AreDurable(NamespaceFilter filter, absl::Span<const ChunkKey> keys) {
  std::vector<bool> durable(keys.size());
  for (size_t i = 0; i < keys.size() && lower_.durable(); ++i) {
    lower_.ForgetIfGone(keys[i]);
    durable[i] = lower_.WaitUntilDurable(keys[i], absl::InfinitePast()).ok() && Stat(filter, keys[i]).ok();
  }
  return durable;
}

std::vector<bool> ChunkStore::AreStored(NamespaceFilter filter, absl::Span<const ChunkKey> keys,
                                        const KvFormat& format) {
  std::vector<ChunkKey> asked;  // those that may be
  std::vector<size_t> asked_at;
  const std::vector<bool> durable = AreDurable(filter, keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (lower_.durable() && !durable[i]) continue;
    asked.push_back(keys[i]);
    asked_at.push_back(i);
  }
  std::vector<bool> stored(keys.size());
  const std::vector<std::optional<ChunkInfo>> infos = StatAll(filter, asked);
  const std::vector<bool> lacking = lower_.Lack(asked, format);
  for (size_t i = 0; i < asked.size(); ++i) {
    stored[asked_at[i]] = infos[i].has_value() && CheckFits(format, infos[i]->num_tokens).ok() && !lacking[i];
  }
  return stored;
}

absl::Status ChunkStore::CheckFits(const KvFormat& format, int32_t num_tokens) const {
  KVBLEND_ASSIGN_OR_RETURN(const int64_t kv_bytes, ChunkKv::SizeBytes(format, num_tokens));
  if (kv_bytes <= options_.byte_budget - kEntryOverheadBytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("chunk store: a chunk of ", num_tokens, " tokens needs ",
                                                    kv_bytes + kEntryOverheadBytes,
                                                    " bytes; allowed: at most ", options_.byte_budget,
                                                    ", all of the memory for chunks (--chunk-store-bytes)"));
}

int64_t ChunkStore::RoomOf(const std::string& tenant_namespace) const {
  if (const std::optional<int64_t> below = lower_.RoomOf(tenant_namespace); below.has_value()) return *below;
  absl::MutexLock lock(&mutex_);
  return index_.RoomOf(tenant_namespace);
}

absl::StatusOr<ChunkPage> ChunkStore::List(NamespaceFilter filter, std::string_view page_token,
                                           int32_t page_size) const {
  if (page_size < 1 || page_size > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", page_size, "; allowed: 1 to ", kMaxPageSize));
  }
  KVBLEND_ASSIGN_OR_RETURN(const std::optional<ListPlace> after,
                           internal::DecodePageToken(filter, page_token));
  // One more than the page holds tells whether it is the last one.
  ChunkPage page;
  {
    absl::MutexLock lock(&mutex_);
    page.chunks = index_.List(filter, after, page_size + 1);
  }
  page.chunks = lower_.List(filter, after, page_size + 1, std::move(page.chunks));
  if (static_cast<int64_t>(page.chunks.size()) > page_size) {
    page.chunks.erase(page.chunks.begin() + page_size, page.chunks.end());
    page.next_page_token = internal::EncodePageToken(page.chunks.back());
  }
  return page;
}

absl::StatusOr<bool> ChunkStore::Erase(NamespaceFilter filter, const ChunkKey& key) {
  return EraseAll(filter, absl::MakeConstSpan(&key, 1))[0];
}

std::vector<absl::StatusOr<bool>> ChunkStore::EraseAll(NamespaceFilter filter,
                                                       absl::Span<const ChunkKey> keys) {
  std::deque<Erasures::Scope> erasures;  // lookups under way take nothing of them into memory
  for (const ChunkKey& key : keys) erasures.emplace_back(lower_.erasures(), key);
  std::vector<bool> found(keys.size());
  {
    Leftovers leftovers;
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      Entry* entry = index_.Find(filter, keys[i]);
      if (entry == nullptr) continue;
      index_.Erase(entry, leftovers.removed);
      found[i] = true;
    }
  }
  // Only resident entries are queued for a tier: from here on nothing of these is written.
  const absl::flat_hash_set<ChunkKey> erased_keys(keys.begin(), keys.end());
  lower_.CancelWrites(
      [&](const ChunkAddress& address) { return erased_keys.contains(address.key) && address.IsIn(filter); });
  std::vector<absl::StatusOr<bool>> erased = lower_.EraseAll(filter, keys);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!erased[i].ok()) continue;
    *erased[i] |= found[i];
    stats_.erased += *erased[i] ? 1 : 0;
  }
  return erased;
}

ChunkStore::Cleared ChunkStore::Clear(NamespaceFilter filter) {
  lower_.CancelWrites([&](const ChunkAddress& address) { return address.IsIn(filter); });
  Cleared cleared;
  std::string page_token;
  do {
    const absl::StatusOr<ChunkPage> page = List(filter, page_token, kMaxPageSize);
    std::vector<ChunkKey> keys;
    keys.reserve(page->chunks.size());
    for (const ChunkInfo& info : page->chunks) keys.push_back(info.key);
    const std::vector<absl::StatusOr<bool>> erased = EraseAll(filter, keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      cleared.erased += erased[i].ok() && *erased[i] ? 1 : 0;
      if (erased[i].ok()) continue;
      ++cleared.failed;
      cleared.failure.Update(erased[i].status());
      if (cleared.failed_keys.size() < Cleared::kMaxFailedKeys) cleared.failed_keys.push_back(keys[i]);
    }
    page_token = page->next_page_token;
  } while (!page_token.empty());
  return cleared;
}

absl::Status ChunkStore::SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) {
  // What is on its way to a tier should be there first, so that the tier can say whether it pins it.
  lower_.WaitUntilWritten(key, absl::Now() + options_.pin_wait).IgnoreError();
  absl::MutexLock one_at_a_time(&pin_mutex_);
  int64_t reserved = 0;
  if (pinned) {  // what memory would refuse is not pinned below either
    absl::MutexLock lock(&mutex_);
    const Entry* entry = index_.Find(filter, key);
    if (entry != nullptr && !entry->pinned) {
      KVBLEND_RETURN_IF_ERROR(index_.ReservePin(entry->bytes));
      reserved = entry->bytes;
    }
  }
  const absl::Status below = lower_.SetPinned(filter, key, pinned);
  absl::MutexLock lock(&mutex_);
  index_.ReleasePin(reserved);
  if (!below.ok() && !absl::IsNotFound(below)) return below;
  Entry* entry = index_.Find(filter, key);
  // Memory refuses only what came there meanwhile; as what comes from below without room it stays unpinned.
  const absl::Status here = entry == nullptr ? below : index_.SetPinned(entry, pinned);
  if (!here.ok() && !below.ok()) return here;
  // For a tier that does not have it yet, or that was told otherwise by what was queued meanwhile.
  if (entry != nullptr) {
    lower_.QueuePin(entry->address, pinned);
  } else {
    lower_.AmendPin(key, pinned);
  }
  for (Fetching* fetching : fetches_) fetching->pins[key] = pinned;
  return absl::OkStatus();
}

absl::Status ChunkStore::PinBehind(NamespaceFilter filter, const ChunkKey& key) {
  absl::MutexLock lock(&mutex_);
  Entry* entry = index_.Find(filter, key);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " was deleted meanwhile"));
  }
  KVBLEND_RETURN_IF_ERROR(index_.SetPinned(entry, true));
  if (entry->is_whole()) {
    OfferToLower(*entry, /*pin=*/true);
  } else {
    lower_.QueuePin(entry->address, true);
  }
  return absl::OkStatus();
}

void ChunkStore::LimitNamespaces(const std::map<std::string, int64_t>& bytes) {
  lower_.LimitNamespaces(bytes);
  Leftovers leftovers;
  absl::MutexLock lock(&mutex_);
  index_.LimitNamespaces(bytes, leftovers.removed);
}

StoreStats ChunkStore::Stats() const {
  const WriteBehind::Stats writes = lower_.write_stats();
  absl::MutexLock lock(&mutex_);
  StoreStats stats = stats_;
  index_.Report(stats);
  stats.reservations = static_cast<int64_t>(reserved_.size());
  stats.queued_writes = writes.queued_entries;
  stats.queued_write_bytes = writes.queued_bytes;
  stats.written_entries = writes.written;
  stats.dropped_writes = writes.dropped;
  stats.failed_writes = writes.failed;
  return stats;
}

}  // namespace kvblend::store
