#include "engine/store/chunk_index.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/api/namespace_limit.h"

namespace kvblend::store::internal {

ChunkIndex::ChunkIndex(Limits limits)
    : limits_(std::move(limits)), eviction_queue_(limits_.namespace_quotas.limited()) {}

ChunkIndex::~ChunkIndex() {
  for ([[maybe_unused]] const auto& [id, entry] : entries_) {
    assert(entry->handles == 0 && "a ChunkHandle outlives the store");
  }
}

// --- looking

Entry* ChunkIndex::Find(const ChunkKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

Entry* ChunkIndex::Find(NamespaceFilter filter, const ChunkKey& key) const {
  Entry* entry = Find(key);
  return entry == nullptr || entry->address.IsIn(filter) ? entry : nullptr;
}

Entry* ChunkIndex::FindAnyAnchor(const ContentKey& content_key) const {
  const auto best = by_content_.lower_bound({content_key, ContentMatch()});
  return best == by_content_.end() || best->first.first != content_key ? nullptr : best->second;
}

std::vector<ChunkInfo> ChunkIndex::List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                                        int64_t limit) const {
  std::vector<ChunkInfo> found;
  auto it = after.has_value() ? by_namespace_.upper_bound(*after)
                              : by_namespace_.lower_bound(ListPlace(filter.value_or(""), ChunkKey()));
  for (; it != by_namespace_.end() && static_cast<int64_t>(found.size()) < limit; ++it) {
    if (!it->second->address.IsIn(filter)) break;
    found.push_back(InfoOf(*it->second));
  }
  return found;
}

ChunkInfo ChunkIndex::InfoOf(const Entry& entry) {
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

void ChunkIndex::RecordAsked(const ChunkKey& key) {
  frequencies_.Record(key, static_cast<int64_t>(by_key_.size()));
}

int64_t ChunkIndex::FrequencyOf(const Entry& entry) const {
  return std::max<int64_t>(frequencies_.Estimate(entry.address.key), entry.proven ? 2 : 1);
}

void ChunkIndex::Report(StoreStats& stats) const {
  stats.entries = static_cast<int64_t>(by_key_.size());
  stats.bytes = bytes_;
  stats.idle_bytes = eviction_queue_.bytes();
  stats.pinned_entries = pinned_entries_;
  stats.pinned_bytes = pinned_bytes_;
  stats.erased_held_bytes = erased_held_bytes_;
  stats.byte_budget = limits_.byte_budget;
  stats.pinned_byte_limit = limits_.pinned_byte_limit;
  stats.evictions = evictions_;
  stats.evicted_bytes = evicted_bytes_;
}

// --- room

absl::Status ChunkIndex::CheckPinLimit(int64_t bytes) const {
  const int64_t taken = pinned_bytes_ + reserved_pin_bytes_;
  if (bytes <= limits_.pinned_byte_limit - taken) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("chunk store: pinning needs ", bytes, " bytes; ", taken,
                                                   " of at most ", limits_.pinned_byte_limit,
                                                   " bytes are pinned"));
}

absl::Status ChunkIndex::ReservePin(int64_t bytes) {
  KVBLEND_RETURN_IF_ERROR(CheckPinLimit(bytes));
  reserved_pin_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status ChunkIndex::MakeRoom(const std::string& tenant_namespace, int64_t bytes, Removed& evicted) {
  const int64_t kept = bytes_ - eviction_queue_.bytes();
  if (bytes > limits_.byte_budget - kept) {
    return absl::ResourceExhaustedError(
        absl::StrCat("chunk store: ", bytes, " bytes needed; of the budget of ", limits_.byte_budget,
                     " bytes ", kept, " are pinned (", pinned_bytes_, ") or in use"));
  }
  if (limits_.namespace_quotas.limited()) {
    KVBLEND_RETURN_IF_ERROR(CheckNamespace(tenant_namespace, bytes, KeptBytesOf(tenant_namespace)));
    EvictInNamespace(tenant_namespace, bytes, evicted);
  }
  while (bytes > limits_.byte_budget - bytes_) Evict(*eviction_queue_.Pop(), evicted);
  return absl::OkStatus();
}

int64_t ChunkIndex::KeptBytesOf(const std::string& tenant_namespace) const {
  const auto used = namespace_bytes_.find(tenant_namespace);
  return used == namespace_bytes_.end() ? 0 : used->second - eviction_queue_.bytes_of(&used->second);
}

absl::Status ChunkIndex::CheckNamespace(const std::string& tenant_namespace, int64_t bytes,
                                        int64_t kept) const {
  if (!limits_.namespace_quotas.limited()) return absl::OkStatus();
  const int64_t quota = limits_.namespace_quotas.BytesOf(tenant_namespace, limits_.byte_budget);
  if (bytes <= quota - kept) return absl::OkStatus();
  return WithNamespaceLimit(absl::ResourceExhaustedError(absl::StrCat(
                                "chunk store: ", bytes, " bytes needed; ",
                                limits_.namespace_quotas.Describe(tenant_namespace, limits_.byte_budget),
                                ", of which ", kept, " are pinned or in use")),
                            tenant_namespace);
}

void ChunkIndex::EvictInNamespace(const std::string& tenant_namespace, int64_t bytes, Removed& evicted) {
  const int64_t quota = limits_.namespace_quotas.BytesOf(tenant_namespace, limits_.byte_budget);
  // Its last entry takes the namespace's count with it.
  for (auto used = namespace_bytes_.find(tenant_namespace);
       used != namespace_bytes_.end() && bytes > quota - used->second;
       used = namespace_bytes_.find(tenant_namespace)) {
    const std::optional<EvictionQueue::EntryId> id = eviction_queue_.PopOf(&used->second);
    if (!id.has_value()) return;
    Evict(*id, evicted);
  }
}

void ChunkIndex::LimitNamespaces(const std::map<std::string, int64_t>& bytes, Removed& evicted) {
  limits_.namespace_quotas.bytes = bytes;
  if (!limits_.namespace_quotas.limited()) return;
  eviction_queue_.CountOwners();
  for (const auto& [name, limit] : bytes) EvictInNamespace(name, 0, evicted);
}

void ChunkIndex::Evict(EvictionQueue::EntryId id, Removed& evicted) {
  Entry* entry = entries_.at(id).get();
  entry->eviction_ticket.reset();
  ++evictions_;
  evicted_bytes_ += entry->bytes;
  Erase(entry, evicted);
}

// --- entries

absl::Status ChunkIndex::Add(std::unique_ptr<Entry>& entry, Removed& evicted) {
  if (entry->pinned) KVBLEND_RETURN_IF_ERROR(CheckPinLimit(entry->bytes));
  KVBLEND_RETURN_IF_ERROR(MakeRoom(entry->address.tenant_namespace, entry->bytes, evicted));
  Entry* const added = entry.get();
  added->id = next_id_++;
  added->namespace_bytes = &namespace_bytes_[added->address.tenant_namespace];
  *added->namespace_bytes += added->bytes;
  by_key_.emplace(added->address.key, added);
  by_namespace_.emplace(PlaceOf(*added), added);
  by_content_.emplace(std::pair(added->address.content_key, MatchOf(added->address)), added);
  bytes_ += added->bytes;
  pinned_entries_ += added->pinned ? 1 : 0;
  pinned_bytes_ += added->pinned ? added->bytes : 0;
  entries_.emplace(added->id, std::move(entry));
  UpdateEvictability(added);
  return absl::OkStatus();
}

void ChunkIndex::Erase(Entry* entry, Removed& removed) {
  by_key_.erase(entry->address.key);
  by_namespace_.erase(PlaceOf(*entry));
  by_content_.erase({entry->address.content_key, MatchOf(entry->address)});
  entry->resident = false;
  SetPinned(entry, false).IgnoreError();
  UpdateEvictability(entry);
  if (entry->handles > 0) {
    erased_held_bytes_ += entry->bytes;
  } else {
    Free(entry, removed);
  }
}

void ChunkIndex::AddHandle(Entry* entry) {
  ++entry->handles;
  UpdateEvictability(entry);
}

void ChunkIndex::DropHandle(Entry* entry, Removed& removed) {
  assert(entry->handles > 0);
  --entry->handles;
  if (entry->resident) {
    UpdateEvictability(entry);
  } else if (entry->handles == 0) {
    erased_held_bytes_ -= entry->bytes;
    Free(entry, removed);
  }
}

absl::Status ChunkIndex::SetPinned(Entry* entry, bool pinned) {
  if (entry->pinned == pinned) return absl::OkStatus();
  if (pinned) KVBLEND_RETURN_IF_ERROR(CheckPinLimit(entry->bytes));
  entry->pinned = pinned;
  pinned_entries_ += pinned ? 1 : -1;
  pinned_bytes_ += pinned ? entry->bytes : -entry->bytes;
  UpdateEvictability(entry);
  return absl::OkStatus();
}

void ChunkIndex::UpdateEvictability(Entry* entry) {
  const bool evictable = entry->resident && entry->handles == 0 && !entry->pinned;
  if (evictable == entry->eviction_ticket.has_value()) return;
  if (evictable) {
    entry->eviction_ticket = eviction_queue_.Add(entry->id, FrequencyOf(*entry), entry->compute_cost_seconds,
                                                 entry->bytes, entry->namespace_bytes);
  } else {
    eviction_queue_.Remove(*entry->eviction_ticket);
    entry->eviction_ticket.reset();
  }
}

void ChunkIndex::Free(Entry* entry, Removed& removed) {
  bytes_ -= entry->bytes;
  *entry->namespace_bytes -= entry->bytes;
  if (*entry->namespace_bytes == 0) namespace_bytes_.erase(entry->address.tenant_namespace);
  removed.push_back(std::move(entries_.extract(entry->id).mapped()));
}

}  // namespace kvblend::store::internal
