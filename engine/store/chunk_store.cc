#include "engine/store/chunk_store.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store {
namespace {

absl::StatusOr<ChunkStore::Options> Checked(ChunkStore::Options options) {
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
  KVBLEND_RETURN_IF_ERROR(options.namespace_quotas.Check());
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChunkStore>> ChunkStore::Create(
    Options options, std::vector<std::unique_ptr<LowerTier>> lower) {
  KVBLEND_ASSIGN_OR_RETURN(options, Checked(std::move(options)));
  return std::unique_ptr<ChunkStore>(new ChunkStore(std::move(options), std::move(lower)));
}

ChunkStore::ChunkStore(Options options, std::vector<std::unique_ptr<LowerTier>> lower)
    : options_(std::move(options)),
      read_meter_(options_.now),
      lower_(std::move(lower), *options_.memory, options_.max_queued_write_bytes, options_.now),
      index_({.byte_budget = options_.byte_budget,
              .pinned_byte_limit = options_.pinned_byte_limit,
              .namespace_quotas = options_.namespace_quotas}) {}

ChunkStore::~ChunkStore() {
  absl::MutexLock lock(&mutex_);
  assert(reserved_.empty() && "a Reservation outlives the store");
}

ChunkStore::Leftovers::~Leftovers() {
  removed.clear();
  for (const std::shared_ptr<ArrivingKv>& arriving : unfinished) arriving->AskForRest();
}

// --- lookups

ChunkStore::Entry* ChunkStore::FindUsable(const ChunkKey& key, Leftovers& leftovers) {
  Entry* entry = index_.Find(key);
  if (entry == nullptr || entry->arriving == nullptr || !entry->arriving->failed()) return entry;
  ++stats_.failed_entries;
  if (!entry->arriving->refused()) lower_.MarkUnreadable(key, entry->arriving->tier());
  index_.Erase(entry, leftovers.removed);
  return nullptr;
}

void ChunkStore::NoteUse(Entry* entry) {
  const absl::Duration since = entry->last_used - entry->use_told;  // below zero: the clock was set back
  if (since >= absl::ZeroDuration() && since < lower_.use_interval()) return;
  entry->use_told = entry->last_used;
  lower_.QueueUse(entry->address);
}

ChunkHandle ChunkStore::HandOut(Entry* entry, PromptReads& reads, bool is_use) {
  if (is_use) {
    ++entry->hits;
    if (!std::exchange(entry->unused, false)) entry->proven = true;
    entry->last_used = options_.now();
    NoteUse(entry);
  }
  index_.AddHandle(entry);
  const bool is_whole = entry->is_whole();
  // Also if another prompt has asked for the entry: that one may not come to ask for all of its layers.
  if (!is_whole) reads.Add(entry->arriving);
  return ChunkHandle(*this, entry, is_whole ? Tier::kHostMemory : entry->arriving->tier(), reads.reader());
}

std::vector<std::optional<ChunkHandle>> ChunkStore::Find(absl::Span<const ChunkKey> keys, PromptReads& reads,
                                                         bool is_use) {
  std::vector<std::optional<ChunkHandle>> found(keys.size());
  {
    Leftovers leftovers;
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (is_use) index_.RecordAsked(keys[i]);
      Entry* entry = FindUsable(keys[i], leftovers);
      if (entry != nullptr) found[i] = HandOut(entry, reads, is_use);
    }
  }
  Fetch(keys, reads, is_use, found);
  return found;
}

std::vector<std::optional<ChunkHandle>> ChunkStore::Lookup(absl::Span<const ChunkKey> keys,
                                                           PromptReads* reads) {
  std::optional<PromptReads> own;
  if (reads == nullptr) reads = &own.emplace(NewPrompt());
  std::vector<std::optional<ChunkHandle>> found = Find(keys, *reads, /*is_use=*/true);
  if (own.has_value()) own->AskForAll();
  absl::MutexLock lock(&mutex_);
  for (const std::optional<ChunkHandle>& handle : found) {
    ++stats_.lookups;
    ++(handle.has_value() ? stats_.hits : stats_.misses);
  }
  return found;
}

std::vector<std::optional<ChunkHandle>> ChunkStore::Prefetch(absl::Span<const ChunkKey> keys,
                                                             ReadFor purpose) {
  PromptReads reads(NewReader(purpose));
  std::vector<std::optional<ChunkHandle>> found = Find(keys, reads, /*is_use=*/false);
  reads.AskForAll();
  return found;
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
  {
    Leftovers leftovers;
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < content_keys.size(); ++i) {
      ++stats_.other_anchor_lookups;
      Entry* best = index_.FindAnyAnchor(content_keys[i]);
      while (best != nullptr && FindUsable(best->address.key, leftovers) == nullptr) {
        best = index_.FindAnyAnchor(content_keys[i]);
      }
      if (best != nullptr && (!below[i].has_value() || !(*below[i] < MatchOf(best->address)))) {
        index_.RecordAsked(best->address.key);
        found[i] = HandOut(best, *reads, /*is_use=*/true);
      } else if (below[i].has_value()) {
        index_.RecordAsked(below[i]->key);
        wanted.push_back(below[i]->key);
        wanted_by.push_back(i);
      }
    }
  }
  std::vector<std::optional<ChunkHandle>> fetched(wanted.size());
  Fetch(wanted, *reads, /*is_use=*/true, fetched);
  for (size_t i = 0; i < wanted.size(); ++i) found[wanted_by[i]] = std::move(fetched[i]);
  if (own.has_value()) own->AskForAll();
  absl::MutexLock lock(&mutex_);
  for (const std::optional<ChunkHandle>& handle : found) {
    stats_.other_anchor_hits += handle.has_value() ? 1 : 0;
  }
  return found;
}

// --- lower tiers

ChunkStore::Fetching::Fetching(ChunkStore& of) : store(of), erasures(of.lower_.erasures()) {
  absl::MutexLock lock(&store.mutex_);
  pins = store.lower_.QueuedPins();
  store.fetches_.insert(this);
}

ChunkStore::Fetching::~Fetching() {
  absl::MutexLock lock(&store.mutex_);
  store.fetches_.erase(this);
}

void ChunkStore::Fetch(absl::Span<const ChunkKey> keys, PromptReads& reads, bool is_use,
                       std::vector<std::optional<ChunkHandle>>& found) {
  if (lower_.empty()) return;
  std::vector<ChunkKey> missing;
  std::vector<size_t> missing_at;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (found[i].has_value()) continue;
    missing.push_back(keys[i]);
    missing_at.push_back(i);
  }
  if (missing.empty()) return;
  const Fetching fetching(*this);
  std::vector<std::shared_ptr<LowerTierEntry>> sources =
      lower_.Open(missing, reads.LookupDeadline(options_.lookup_budget));
  for (size_t i = 0; i < missing.size(); ++i) {
    if (sources[i] != nullptr) found[missing_at[i]] = Admit(std::move(sources[i]), fetching, reads, is_use);
  }
}

std::optional<ChunkHandle> ChunkStore::Admit(std::shared_ptr<LowerTierEntry> source, const Fetching& fetching,
                                             PromptReads& reads, bool is_use) {
  const EntryHeader& header = source->header();
  // Before memory is taken: anybody may have written what is in a shared tier.
  const absl::StatusOr<int64_t> bytes = ChunkKv::SizeBytes(header.address.format, header.address.num_tokens);
  if (!bytes.ok() || *bytes > options_.byte_budget) return std::nullopt;
  absl::StatusOr<std::unique_ptr<ChunkKv>> allocated =
      ChunkKv::Allocate(header.address.format, header.address.num_tokens, *options_.memory);
  if (!allocated.ok()) return std::nullopt;
  const std::shared_ptr<ChunkKv> kv = *std::move(allocated);
  auto fresh = std::make_unique<Entry>();
  Entry* const entry = fresh.get();
  entry->address = header.address;
  entry->kv = kv;
  entry->arriving = std::make_shared<ArrivingKv>(source, kv, read_meter_);
  entry->bytes = kv->size_bytes() + kEntryOverheadBytes;
  entry->label = header.label;
  entry->compute_cost_seconds = header.compute_cost_seconds;
  entry->created = header.created;
  entry->last_used = header.created;
  entry->unused = true;

  Leftovers leftovers;
  absl::MutexLock lock(&mutex_);
  if (fetching.erasures.Erased(header.address.key)) return std::nullopt;
  // Another thread may have been faster.
  if (Entry* resident = FindUsable(header.address.key, leftovers); resident != nullptr) {
    return HandOut(resident, reads, is_use);
  }
  const auto changed = fetching.pins.find(header.address.key);
  const bool pinned = changed == fetching.pins.end() ? source->pinned() : changed->second;
  entry->pinned = pinned && index_.CheckPinLimit(entry->bytes).ok();
  if (!AddEntry(fresh, leftovers).ok()) return std::nullopt;
  ++(is_use ? stats_.lower_hits : stats_.prefetched);
  return HandOut(entry, reads, is_use);
}

absl::Status ChunkStore::AddEntry(std::unique_ptr<Entry>& entry, Leftovers& leftovers) {
  internal::ChunkIndex::Removed evicted;
  absl::Status added = index_.Add(entry, evicted);
  for (std::unique_ptr<Entry>& gone : evicted) {
    if (index_.FrequencyOf(*gone) > 1) OfferToLower(*gone);
    leftovers.removed.push_back(std::move(gone));
  }
  return added;
}

void ChunkStore::OfferToLower(const Entry& entry, bool pin) {
  if (lower_.empty() || !entry.is_whole()) return;
  const LowerTier::PutOptions options{.label = entry.label,
                                      .compute_cost_seconds = entry.compute_cost_seconds,
                                      .frequency = index_.FrequencyOf(entry),
                                      .created = entry.created};
  if (pin) {
    lower_.WriteAndPin(entry.address, entry.kv, options);
  } else {
    lower_.Write(entry.address, entry.kv, entry.pinned, options);
  }
}

void ChunkStore::Return(Entry* entry) {
  Leftovers leftovers;
  absl::MutexLock lock(&mutex_);
  ArrivingKv* const arriving = entry->arriving.get();
  const bool is_last = entry->handles == 1;
  if (entry->resident && arriving != nullptr) {
    // An entry from a lower tier other than the first is worth having nearer once it is asked for again. Who
    // stores it waits until it is written, however long others hold it.
    if (!entry->promoted && (entry->wanted || (is_last && index_.FrequencyOf(*entry) > 1))) {
      entry->promoted = entry->is_whole();
      OfferToLower(*entry);
    }
    const int32_t num_unasked = arriving->num_unasked();
    if (is_last && num_unasked == arriving->num_layers() && !entry->pinned) {
      // Nobody began to read the entry, so it is dropped. What somebody began to read is completed and kept.
      index_.Erase(entry, leftovers.removed);
    } else if (is_last && num_unasked > 0) {
      leftovers.unfinished.push_back(entry->arriving);
    }
  }
  index_.DropHandle(entry, leftovers.removed);
}

// --- insertion

absl::StatusOr<ChunkHandle> ChunkStore::Insert(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                               const InsertOptions& options) {
  return InsertOrCommit(address, std::move(kv), options, /*is_commit=*/false);
}

absl::StatusOr<ChunkHandle> ChunkStore::Commit(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                               const InsertOptions& options) {
  return InsertOrCommit(address, std::move(kv), options, /*is_commit=*/true);
}

absl::StatusOr<ChunkHandle> ChunkStore::InsertOrCommit(const ChunkAddress& address,
                                                       std::unique_ptr<ChunkKv> kv,
                                                       const InsertOptions& options, bool is_commit) {
  const absl::Status sound = kv == nullptr
                                 ? absl::InvalidArgumentError("chunk store: no KV given")
                                 : CheckStorable("chunk store", address, *kv, options.compute_cost_seconds);
  auto fresh = std::make_unique<Entry>();
  if (sound.ok()) {
    fresh->address = address;
    fresh->bytes = kv->size_bytes() + kEntryOverheadBytes;
    fresh->kv = std::move(kv);
    fresh->label = options.label;
    fresh->compute_cost_seconds = options.compute_cost_seconds;
    fresh->created = options_.now();
    fresh->last_used = fresh->created;
    fresh->pinned = options.pinned;
    fresh->proven = options.on_purpose;
  }
  Leftovers leftovers;
  absl::MutexLock lock(&mutex_);
  if (is_commit) reserved_.erase(address.key);
  KVBLEND_RETURN_IF_ERROR(sound);
  Entry* entry = FindUsable(address.key, leftovers);
  absl::Status stored;
  if (entry != nullptr) {
    if (options.pinned) stored = index_.SetPinned(entry, true);
    if (stored.ok()) {
      entry->proven |= options.on_purpose;
      ++stats_.duplicate_insertions;
    }
  } else {
    entry = fresh.get();
    stored = AddEntry(fresh, leftovers);
    if (stored.ok()) {
      ++stats_.insertions;
      stats_.inserted_bytes += entry->bytes;
    }
  }
  if (!stored.ok()) {
    ++stats_.rejected_insertions;
    return stored;
  }
  // An entry that still arrives is not whole, but what was given is.
  OfferToLower(entry->is_whole() ? *entry : *fresh, options.pinned);
  index_.AddHandle(entry);
  return ChunkHandle(*this, entry, Tier::kHostMemory, NewReader(ReadFor::kPut));
}

// --- reservations

absl::StatusOr<ReserveResult> ChunkStore::LookupOrReserve(const ChunkAddress& address) {
  KVBLEND_ASSIGN_OR_RETURN(const int64_t kv_bytes, ChunkKv::SizeBytes(address.format, address.num_tokens));
  if (absl::Status fits = CheckFits(address.format, address.num_tokens); !fits.ok()) {
    absl::MutexLock lock(&mutex_);
    ++stats_.rejected_insertions;
    return fits;
  }
  PromptReads reads(NewReader(ReadFor::kPut));
  std::vector<std::optional<ChunkHandle>> found(1);
  {
    Leftovers leftovers;
    absl::MutexLock lock(&mutex_);
    if (Entry* entry = FindUsable(address.key, leftovers); entry != nullptr) {
      found[0] = HandOut(entry, reads, /*is_use=*/true);
    } else if (reserved_.contains(address.key)) {  // without asking the lower tiers again and again
      ++stats_.reserve_lookups;
      ++stats_.waits;
      return BeingComputed();
    }
  }
  if (found[0].has_value()) {
    // The caller is told that it is durable, so it must be certain that nobody has removed it.
    lower_.ForgetIfGone(address.key);
    absl::MutexLock lock(&mutex_);
    if (const Entry* entry = index_.Find(address.key); entry != nullptr) OfferToLower(*entry);
  }
  Fetch(absl::MakeConstSpan(&address.key, 1), reads, /*is_use=*/true, found);
  reads.AskForAll();

  std::optional<ChunkHandle> unfit;  // goes when the lock is released
  Leftovers leftovers;
  // Counted in one go, so that the sums hold at every moment.
  absl::MutexLock lock(&mutex_);
  // A tier that others write to may have something else under the key: a miss.
  if (found[0].has_value() &&
      (found[0]->format() != address.format || found[0]->num_tokens() != address.num_tokens)) {
    unfit = std::exchange(found[0], std::nullopt);
    lower_.MarkUnreadable(address.key, unfit->tier());
    if (Entry* entry = index_.Find(address.key); entry != nullptr) index_.Erase(entry, leftovers.removed);
  }
  if (!found[0].has_value()) {  // since then, somebody may have inserted it
    if (Entry* entry = FindUsable(address.key, leftovers); entry != nullptr) {
      found[0] = HandOut(entry, reads, /*is_use=*/true);
    }
  }
  ++stats_.reserve_lookups;
  if (found[0].has_value()) {
    // What still arrives is offered to the lower tiers when its handle comes back; see Return.
    if (Entry* entry = index_.Find(address.key); entry != nullptr) entry->wanted = true;
    ++stats_.reserve_hits;
    return *std::move(found[0]);
  }
  if (reserved_.contains(address.key)) {
    ++stats_.waits;
    return BeingComputed();
  }
  const int64_t pinned_bytes = index_.pinned_bytes();
  if (kv_bytes > options_.byte_budget - pinned_bytes - kEntryOverheadBytes) {
    ++stats_.rejected_insertions;
    return absl::ResourceExhaustedError(absl::StrCat(
        "chunk store: a chunk of ", address.num_tokens, " tokens needs ", kv_bytes + kEntryOverheadBytes,
        " bytes; the budget is ", options_.byte_budget, " bytes, of which ", pinned_bytes, " are pinned"));
  }
  if (absl::Status fits =
          index_.CheckNamespace(address.tenant_namespace, kv_bytes + kEntryOverheadBytes, /*kept=*/0);
      !fits.ok()) {
    ++stats_.rejected_insertions;
    return fits;
  }
  ++stats_.reservations_made;
  reserved_.insert(address.key);
  return Reservation(*this, address);
}

void ChunkStore::Abandon(const ChunkKey& key) {
  absl::MutexLock lock(&mutex_);
  reserved_.erase(key);
}

}  // namespace kvblend::store
