#include "engine/store/chunk_store.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvblend::store {
absl::StatusOr<std::unique_ptr<ChunkStore>> ChunkStore::Create(
    Options options, std::vector<std::unique_ptr<LowerTier>> lower) {
  if (options.byte_budget < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk store: byte_budget is ", options.byte_budget, "; allowed: >= 0"));
  }
  if (options.pinned_byte_limit < -1 || options.pinned_byte_limit > options.byte_budget) {
    return absl::InvalidArgumentError(absl::StrCat("chunk store: pinned_byte_limit is ",
                                                   options.pinned_byte_limit, "; allowed: 0 to byte_budget (",
                                                   options.byte_budget, "), or -1 for half of it"));
  }
  if (options.pinned_byte_limit == -1) options.pinned_byte_limit = options.byte_budget / 2;
  if (options.max_queued_write_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("chunk store: max_queued_write_bytes is ",
                                                   options.max_queued_write_bytes, "; allowed: >= 0"));
  }
  if (absl::Status s = options.namespace_quotas.Check(); !s.ok()) return s;
  return std::unique_ptr<ChunkStore>(new ChunkStore(std::move(options), std::move(lower)));
}

absl::StatusOr<std::unique_ptr<ChunkStore>> ChunkStore::Create(Options options,
                                                               std::unique_ptr<LowerTier> lower) {
  std::vector<std::unique_ptr<LowerTier>> tiers;
  if (lower != nullptr) tiers.push_back(std::move(lower));
  return Create(std::move(options), std::move(tiers));
}

ChunkStore::ChunkStore(Options options, std::vector<std::unique_ptr<LowerTier>> lower)
    : options_(std::move(options)),
      read_meter_(options_.now),
      eviction_queue_(options_.namespace_quotas.limited()),
      lower_(std::move(lower), *options_.memory, options_.max_queued_write_bytes, options_.now) {
  absl::MutexLock lock(&mutex_);
  stats_.byte_budget = options_.byte_budget;
  stats_.pinned_byte_limit = options_.pinned_byte_limit;
}

ChunkStore::~ChunkStore() {
  // Entries that are still arriving take their reads back from the tier, so they go first.
  decltype(entries_) entries;
  {
    absl::MutexLock lock(&mutex_);
    assert(reservations_.empty() && "a Reservation or Pending outlives the store");
    entries.swap(entries_);
  }
  for ([[maybe_unused]] const auto& [id, entry] : entries) {
    assert(entry->handles == 0 && "a ChunkHandle outlives the store");
  }
}

// --- lookups

std::vector<std::optional<ChunkHandle>> ChunkStore::Lookup(absl::Span<const ChunkKey> keys,
                                                           PromptReads* reads) {
  std::vector<std::optional<ChunkHandle>> found(keys.size());
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      frequencies_.Record(keys[i], stats_.entries);
      if (Entry* entry = FindUsable(keys[i], deferred); entry != nullptr) {
        found[i] = HitLocked(entry, reads);
      }
    }
  }
  deferred.Run();
  Fetch(keys, reads, /*is_use=*/true, found);
  absl::MutexLock lock(&mutex_);
  for (const std::optional<ChunkHandle>& handle : found) {
    ++stats_.lookups;
    ++(handle.has_value() ? stats_.hits : stats_.misses);
  }
  return found;
}

std::vector<std::optional<ChunkHandle>> ChunkStore::Prefetch(absl::Span<const ChunkKey> keys) {
  std::vector<std::optional<ChunkHandle>> found(keys.size());
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      Entry* entry = FindUsable(keys[i], deferred);
      if (entry != nullptr) found[i] = HandleOf(entry, nullptr);
    }
  }
  deferred.Run();
  Fetch(keys, /*reads=*/nullptr, /*is_use=*/false, found);
  return found;
}

std::optional<ChunkHandle> ChunkStore::Lookup(const ChunkKey& key, PromptReads* reads) {
  return std::move(Lookup(absl::MakeConstSpan(&key, 1), reads).front());
}

std::vector<std::optional<ChunkHandle>> ChunkStore::LookupAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                    PromptReads* reads) {
  std::vector<std::optional<ChunkHandle>> found(content_keys.size());
  if (content_keys.empty()) return found;
  std::optional<PromptReads> own;
  if (reads == nullptr) reads = &own.emplace(NewPrompt());
  const std::vector<std::optional<ContentMatch>> below =
      lower_.empty() ? std::vector<std::optional<ContentMatch>>(content_keys.size())
                     : lower_.FindAnyAnchor(content_keys, reads->LookupDeadline(options_.lookup_budget));
  std::vector<ChunkKey> wanted;
  std::vector<size_t> wanted_by;
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < content_keys.size(); ++i) {
      const ContentKey& content_key = content_keys[i];
      ++stats_.other_anchor_lookups;
      auto best = by_content_.lower_bound({content_key, false, ChunkKey()});
      while (best != by_content_.end() && best->first.content_key == content_key &&
             FindUsable(best->first.key, deferred) == nullptr) {
        best = by_content_.lower_bound({content_key, false, ChunkKey()});
      }
      const bool here = best != by_content_.end() && best->first.content_key == content_key;
      if (here && (!below[i].has_value() ||
                   !(ContentIndexKey{content_key, below[i]->isolated, below[i]->key} < best->first))) {
        frequencies_.Record(best->first.key, stats_.entries);
        found[i] = HitLocked(best->second, reads);
      } else if (below[i].has_value()) {
        frequencies_.Record(below[i]->key, stats_.entries);
        wanted.push_back(below[i]->key);
        wanted_by.push_back(i);
      }
    }
  }
  deferred.Run();
  std::vector<std::optional<ChunkHandle>> fetched(wanted.size());
  Fetch(wanted, reads, /*is_use=*/true, fetched);
  for (size_t i = 0; i < wanted.size(); ++i) found[wanted_by[i]] = std::move(fetched[i]);
  if (own.has_value()) own->AskForAll();
  absl::MutexLock lock(&mutex_);
  for (const std::optional<ChunkHandle>& handle : found)
    stats_.other_anchor_hits += handle.has_value() ? 1 : 0;
  return found;
}

std::optional<ChunkHandle> ChunkStore::LookupAnyAnchor(const ContentKey& content_key, PromptReads* reads) {
  return std::move(LookupAnyAnchor(absl::MakeConstSpan(&content_key, 1), reads).front());
}

// --- insertion

absl::Status ChunkStore::CheckInsert(const ChunkAddress& address, const ChunkKv* kv,
                                     const InsertOptions& options) const {
  if (kv == nullptr) return absl::InvalidArgumentError("chunk store: no KV given");
  if (kv->format() != address.format || kv->num_tokens() != address.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("chunk store: KV of ", kv->num_tokens(),
                                                   " tokens is not of the shape that its address names (",
                                                   address.num_tokens, " tokens), or of another format"));
  }
  if (!std::isfinite(options.compute_cost_seconds) || options.compute_cost_seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk store: compute_cost_seconds is ", options.compute_cost_seconds, "; allowed: finite and >= 0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChunkHandle> ChunkStore::Insert(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                               const InsertOptions& options) {
  if (absl::Status s = CheckInsert(address, kv.get(), options); !s.ok()) return s;
  Deferred deferred;
  absl::ReleasableMutexLock lock(&mutex_);
  absl::StatusOr<ChunkHandle> handle = InsertLocked(address, kv, options, deferred);
  lock.Release();
  deferred.Run();
  return handle;
}

absl::StatusOr<ChunkHandle> ChunkStore::InsertLocked(const ChunkAddress& address,
                                                     std::unique_ptr<ChunkKv>& kv,
                                                     const InsertOptions& options, Deferred& deferred) {
  Entry* entry = FindUsable(address.key, deferred);
  if (entry != nullptr) {
    if (options.pinned && !entry->pinned) {
      if (absl::Status s = CheckPinLimit(entry->bytes); !s.ok()) {
        ++stats_.rejected_insertions;
        return s;
      }
      entry->pinned = true;
      ++stats_.pinned_entries;
      stats_.pinned_bytes += entry->bytes;
    }
    entry->proven |= options.on_purpose;
    ++stats_.duplicate_insertions;
  } else {
    const int64_t bytes = kv->size_bytes() + kEntryOverheadBytes;
    absl::Status fits = options.pinned ? CheckPinLimit(bytes) : absl::OkStatus();
    if (fits.ok()) fits = MakeRoom(address, bytes, deferred);
    if (!fits.ok()) {
      ++stats_.rejected_insertions;
      return fits;
    }
    entry = AddEntry(address, std::move(kv), bytes, options, options_.now());
    ++stats_.insertions;
    stats_.inserted_bytes += bytes;
  }
  OfferToLower(*entry);
  AddHandle(entry);
  ResolveWaiters(address.key, entry, deferred);
  return ChunkHandle(this, entry);
}

ChunkStore::Entry* ChunkStore::AddEntry(const ChunkAddress& address, std::shared_ptr<const ChunkKv> kv,
                                        int64_t bytes, const InsertOptions& options, absl::Time created) {
  auto owned = std::make_unique<Entry>();
  Entry* entry = owned.get();
  entry->id = next_id_++;
  entry->address = address;
  entry->kv = std::move(kv);
  entry->bytes = bytes;
  entry->label = options.label;
  entry->compute_cost_seconds = options.compute_cost_seconds;
  entry->created = created;
  entry->last_used = created;
  entry->pinned = options.pinned;
  entry->proven = options.on_purpose;
  entry->namespace_bytes = &namespace_bytes_[address.tenant_namespace];
  *entry->namespace_bytes += bytes;
  entries_.emplace(entry->id, std::move(owned));
  by_key_.emplace(address.key, entry);
  by_namespace_.emplace(NamespaceAndKey(address.tenant_namespace, address.key), entry);
  by_content_.emplace(
      ContentIndexKey{address.content_key, address.anchor_hash == IsolatedAnchorHash(), address.key}, entry);
  ++stats_.entries;
  stats_.bytes += bytes;
  stats_.pinned_entries += options.pinned ? 1 : 0;
  stats_.pinned_bytes += options.pinned ? bytes : 0;
  return entry;
}

absl::Status ChunkStore::CheckPinLimit(int64_t bytes) const {
  if (bytes <= options_.pinned_byte_limit - stats_.pinned_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("chunk store: pinning needs ", bytes, " bytes; ",
                                                   stats_.pinned_bytes, " of at most ",
                                                   options_.pinned_byte_limit, " bytes are pinned"));
}

absl::Status ChunkStore::MakeRoom(const ChunkAddress& address, int64_t bytes, Deferred& deferred) {
  const int64_t kept = stats_.bytes - eviction_queue_.bytes();
  if (bytes > options_.byte_budget - kept) {
    return absl::ResourceExhaustedError(
        absl::StrCat("chunk store: ", bytes, " bytes needed; of the budget of ", options_.byte_budget,
                     " bytes ", kept, " are pinned (", stats_.pinned_bytes, ") or in use"));
  }
  if (options_.namespace_quotas.limited()) {
    if (absl::Status s = MakeRoomInNamespace(address.tenant_namespace, bytes, deferred); !s.ok()) return s;
  }
  while (bytes > options_.byte_budget - stats_.bytes) Evict(*eviction_queue_.Pop(), deferred);
  return absl::OkStatus();
}

absl::Status ChunkStore::MakeRoomInNamespace(const std::string& tenant_namespace, int64_t bytes,
                                             Deferred& deferred) {
  const int64_t quota = options_.namespace_quotas.BytesOf(tenant_namespace, options_.byte_budget);
  auto used = namespace_bytes_.find(tenant_namespace);
  const int64_t kept =
      used == namespace_bytes_.end() ? 0 : used->second - eviction_queue_.bytes_of(&used->second);
  if (bytes > quota - kept) {
    return absl::ResourceExhaustedError(absl::StrCat("chunk store: ", bytes, " bytes needed; namespace '",
                                                     tenant_namespace, "' may fill ", quota,
                                                     " bytes, of which ", kept, " are pinned or in use"));
  }
  // Its last entry takes the namespace's count with it.
  for (; used != namespace_bytes_.end() && bytes > quota - used->second;
       used = namespace_bytes_.find(tenant_namespace)) {
    Evict(*eviction_queue_.PopOf(&used->second), deferred);
  }
  return absl::OkStatus();
}

void ChunkStore::Evict(EvictionQueue::EntryId id, Deferred& deferred) {
  Entry* entry = entries_.at(id).get();
  entry->eviction_ticket.reset();
  ++stats_.evictions;
  stats_.evicted_bytes += entry->bytes;
  if (FrequencyOf(*entry) > 1) OfferToLower(*entry);
  TakeOut(entry, deferred);
}

int64_t ChunkStore::FrequencyOf(const Entry& entry) const {
  return std::max<int64_t>(frequencies_.Estimate(entry.address.key), entry.proven ? 2 : 1);
}

// --- entries

ChunkStore::Entry* ChunkStore::FindLocked(const ChunkKey& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

ChunkStore::Entry* ChunkStore::FindUsable(ChunkKey key, Deferred& deferred) {
  Entry* entry = FindLocked(key);
  if (entry == nullptr || entry->arriving == nullptr || !entry->arriving->failed()) return entry;
  ++stats_.failed_entries;
  lower_.MarkUnreadable(key, entry->arriving->tier());
  TakeOut(entry, deferred);
  return nullptr;
}

ChunkHandle ChunkStore::HitLocked(Entry* entry, PromptReads* reads) {
  ++entry->hits;
  if (!std::exchange(entry->unused, false)) entry->proven = true;
  entry->last_used = options_.now();
  return HandleOf(entry, reads);
}

ChunkHandle ChunkStore::HandleOf(Entry* entry, PromptReads* reads) {
  AddHandle(entry);
  // Also of an entry that another prompt has brought here, and may not come to ask for all of.
  if (!entry->is_whole() && reads != nullptr) reads->Add(entry->arriving);
  return ChunkHandle(this, entry, entry->is_whole() ? Tier::kHostMemory : entry->arriving->tier());
}

void ChunkStore::AddHandle(Entry* entry) {
  ++entry->handles;
  UpdateEvictability(entry);
}

void ChunkStore::DropHandle(Entry* entry, Deferred& deferred) {
  assert(entry->handles > 0);
  --entry->handles;
  if (entry->resident) {
    // What came from a lower tier but the first is worth having nearer once it is asked for again.
    if (entry->handles == 0 && entry->arriving != nullptr && !entry->promoted && FrequencyOf(*entry) > 1) {
      entry->promoted = entry->is_whole();
      OfferToLower(*entry);
    }
    UpdateEvictability(entry);
    if (entry->handles == 0 && entry->arriving != nullptr && entry->arriving->num_unasked() > 0) {
      // What nobody came to read need not be here; what somebody began to read is kept, so it is completed.
      if (entry->arriving->num_unasked() == entry->arriving->num_layers() && !entry->pinned) {
        TakeOut(entry, deferred);
      } else {
        deferred.unfinished.push_back(entry->arriving);
      }
    }
  } else if (entry->handles == 0) {
    stats_.erased_held_bytes -= entry->bytes;
    Free(entry, deferred);
  }
}

void ChunkStore::Free(Entry* entry, Deferred& deferred) {
  stats_.bytes -= entry->bytes;
  *entry->namespace_bytes -= entry->bytes;
  if (*entry->namespace_bytes == 0) namespace_bytes_.erase(entry->address.tenant_namespace);
  deferred.freed.push_back(std::move(entries_.extract(entry->id).mapped()));
}

void ChunkStore::ReleaseHandle(Entry* entry) {
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    DropHandle(entry, deferred);
  }
  deferred.Run();
}

void ChunkStore::UpdateEvictability(Entry* entry) {
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

void ChunkStore::TakeOut(Entry* entry, Deferred& deferred) {
  const ChunkAddress& address = entry->address;
  by_key_.erase(address.key);
  by_namespace_.erase(NamespaceAndKey(address.tenant_namespace, address.key));
  by_content_.erase({address.content_key, address.anchor_hash == IsolatedAnchorHash(), address.key});
  --stats_.entries;
  if (entry->pinned) {
    --stats_.pinned_entries;
    stats_.pinned_bytes -= entry->bytes;
    entry->pinned = false;
  }
  entry->resident = false;
  UpdateEvictability(entry);
  if (entry->handles > 0) {
    stats_.erased_held_bytes += entry->bytes;
  } else {
    Free(entry, deferred);
  }
}

}  // namespace kvblend::store
