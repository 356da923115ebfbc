#include "engine/serve/sequences/kept_sequences.h"

#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"

namespace kvblend {
namespace {

size_t ChainBegin(std::string_view tenant_namespace) { return absl::HashOf(tenant_namespace); }
size_t ChainNext(size_t hash, int32_t token) { return absl::HashOf(hash, token); }

/// Whether the KV of equal prompts would be blended in the same way.
bool SameBlend(BlendOptions a, BlendOptions b) {
  a.store_misses = b.store_misses = true;  // these make no difference to KV
  a.explain = b.explain = false;
  a.share_prefix = b.share_prefix = true;
  return a == b;
}

}  // namespace

int32_t UsableTokens(const KeptSequence& sequence, absl::Span<const int32_t> token_ids,
                     const BlendOptions& blend) {
  if (blend.reuse == Reuse::kNothing) return 0;
  int32_t tokens = CommonTokens(sequence.token_ids, token_ids);
  if (!SameBlend(sequence.blend, blend)) tokens = std::min(tokens, sequence.num_exact);
  return tokens >= sequence.must_match ? tokens : 0;
}

KeptSequences::KeptSequences(kv::PagePool& pool, int64_t max_pages) : pool_(pool), max_pages_(max_pages) {
  if (enabled()) pool_.SetReclaim([this](int64_t num_pages) { MakeFree(pool_.num_free() + num_pages); });
}

KeptSequences::~KeptSequences() {
  if (enabled()) pool_.SetReclaim(nullptr);
}

void KeptSequences::Keep(KeptSequence sequence) {
  if (!enabled()) return;
  sequence.pages->Shrink(sequence.num_tokens());
  const int64_t num_pages = sequence.pages->num_held();
  if (num_pages == 0 || num_pages > max_pages_) return;
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    const KeptSequence& other = (entry++)->sequence;
    if (other.tenant_namespace == sequence.tenant_namespace && SameBlend(other.blend, sequence.blend) &&
        other.num_exact <= sequence.num_exact &&
        CommonTokens(other.token_ids, sequence.token_ids) == other.num_tokens()) {
      Remove(std::prev(entry));
    }
  }
  sequence.pages->SetUse(kv::PageUse::kKept);
  size_t hash = ChainBegin(sequence.tenant_namespace);
  for (int32_t i = 0; i < sequence.must_match; ++i) hash = ChainNext(hash, sequence.token_ids[i]);
  entries_.push_front({.sequence = std::move(sequence), .id = next_id_++, .hash = hash});
  by_hash_[hash].push_back(entries_.begin());
  while (pool_.HeldFor(kv::PageUse::kKept).distinct > max_pages_) Evict(std::prev(entries_.end()));
  Count();
}

std::optional<SharedPrefix> KeptSequences::FindExact(std::string_view tenant_namespace,
                                                     absl::Span<const int32_t> token_ids) const {
  const KeptSequence* best = nullptr;
  int32_t most = 0;
  for (const Entry& entry : entries_) {
    const KeptSequence& sequence = entry.sequence;
    if (sequence.tenant_namespace != tenant_namespace) continue;
    if (!MayShareMore(sequence.token_ids, token_ids, most)) continue;
    const int32_t common =
        std::min({CommonTokens(sequence.token_ids, token_ids), sequence.num_exact, sequence.num_whole});
    if (common <= most) continue;
    most = common;
    best = &sequence;
  }
  if (best == nullptr) return std::nullopt;
  return SharedPrefix{best->pages.get(), most, RangesBefore(best->loaded, most)};
}

std::optional<KeptSequence> KeptSequences::Take(std::string_view tenant_namespace,
                                                absl::Span<const int32_t> token_ids, int32_t max_tokens,
                                                const BlendOptions& blend) {
  if (entries_.empty()) return std::nullopt;
  token_ids = token_ids.first(std::min<size_t>(token_ids.size(), std::max(max_tokens, 0)));
  std::optional<Entries::iterator> best;
  int32_t most = 0;
  size_t hash = ChainBegin(tenant_namespace);
  for (const int32_t token : token_ids) {
    hash = ChainNext(hash, token);
    const auto found = by_hash_.find(hash);
    if (found == by_hash_.end()) continue;
    for (const Entries::iterator entry : found->second) {
      if (entry->sequence.tenant_namespace != tenant_namespace) continue;
      const int32_t usable = UsableTokens(entry->sequence, token_ids, blend);
      if (usable == 0 || usable < most) continue;
      most = usable;
      best = entry;  // of those with one hash, the one used last comes last
    }
  }
  if (!best.has_value()) return std::nullopt;
  KeptSequence taken = Remove(*best);
  taken.token_ids.resize(most);
  taken.num_exact = std::min(taken.num_exact, most);
  taken.num_whole = std::min(taken.num_whole, most);
  taken.loaded = RangesBefore(taken.loaded, most);
  taken.pages->Shrink(most);
  taken.pages->SetUse(kv::PageUse::kWorking);
  Count();
  counts_.taken.fetch_add(1, std::memory_order_relaxed);
  return taken;
}

std::optional<KeptSequences::Id> KeptSequences::FirstInexact(int32_t rows) const {
  const int64_t room =
      std::min<int64_t>(pool_.num_free(), max_pages_ - pool_.HeldFor(kv::PageUse::kKept).distinct);
  for (const Entry& entry : entries_) {
    const KeptSequence& sequence = entry.sequence;
    if (sequence.num_exact == sequence.num_tokens()) continue;
    const int32_t begin = sequence.num_whole, end = std::min(begin + rows, sequence.num_tokens());
    if (sequence.pages->num_dropped() + sequence.pages->PagesToCopy(begin, end) <= room) return entry.id;
  }
  return std::nullopt;
}

KeptSequences::Entries::iterator KeptSequences::EntryOf(Id id) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.id == id; });
}

KeptSequence* KeptSequences::Find(Id id) {
  const auto entry = EntryOf(id);
  return entry == entries_.end() ? nullptr : &entry->sequence;
}

void KeptSequences::Drop(Id id) {
  if (const auto entry = EntryOf(id); entry != entries_.end()) Remove(entry);
  Count();
}

KeptSequence KeptSequences::Remove(Entries::iterator entry) {
  const auto found = by_hash_.find(entry->hash);
  std::erase(found->second, entry);
  if (found->second.empty()) by_hash_.erase(found);
  KeptSequence sequence = std::move(entry->sequence);
  entries_.erase(entry);
  return sequence;
}

void KeptSequences::Count() {
  counts_.sequences.store(static_cast<int32_t>(entries_.size()), std::memory_order_relaxed);
  counts_.pages.store(static_cast<int32_t>(pool_.HeldFor(kv::PageUse::kKept).distinct),
                      std::memory_order_relaxed);
}

void KeptSequences::Evict(Entries::iterator entry) {
  Remove(entry);
  Count();
  counts_.evicted.fetch_add(1, std::memory_order_relaxed);
}

KeptSequences::Entries::iterator KeptSequences::FirstToFree() {
  auto first = entries_.end();
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    const kv::IdlePages idle = (--entry)->sequence.pages->idle();
    if (idle.alone > 0) return entry;
    if (idle.all > 0 && first == entries_.end()) first = entry;
  }
  return first;
}

void KeptSequences::MakeFree(int64_t num_pages) {
  while (pool_.num_free() < num_pages && pool_.num_idle() > 0) Evict(FirstToFree());
}

}  // namespace kvblend
