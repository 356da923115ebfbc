// The part of ChunkStore that moves entries to the tiers below host memory and back.
#include <utility>

#include "engine/store/chunk_store.h"

namespace kvblend::store {

void ChunkStore::Fetch(absl::Span<const ChunkKey> keys, PromptReads* reads, bool is_use,
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
  std::optional<PromptReads> own;
  if (reads == nullptr) reads = &own.emplace(NewPrompt());
  std::vector<std::shared_ptr<LowerTierEntry>> sources =
      lower_.Open(missing, reads->LookupDeadline(options_.lookup_budget));
  for (size_t i = 0; i < missing.size(); ++i) {
    if (sources[i] != nullptr) found[missing_at[i]] = Admit(std::move(sources[i]), is_use, *reads);
  }
  if (own.has_value()) own->AskForAll();
}

std::optional<ChunkHandle> ChunkStore::Admit(std::shared_ptr<LowerTierEntry> source, bool is_use,
                                             PromptReads& reads) {
  const EntryHeader& header = source->header();
  absl::StatusOr<std::unique_ptr<ChunkKv>> allocated =
      ChunkKv::Allocate(header.address.format, header.address.num_tokens, *options_.memory);
  if (!allocated.ok()) return std::nullopt;
  const std::shared_ptr<ChunkKv> kv = *std::move(allocated);
  const auto arriving = std::make_shared<ArrivingKv>(source, kv, reads.prompt(), read_meter_);

  std::optional<ChunkHandle> handle;
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    if (Entry* resident = FindUsable(header.address.key, deferred); resident != nullptr) {
      handle = is_use ? HitLocked(resident, &reads) : HandleOf(resident, &reads);  // someone else was faster
    } else if (const int64_t bytes = kv->size_bytes() + kEntryOverheadBytes;
               MakeRoom(header.address, bytes, deferred).ok()) {
      Entry* entry = AddEntry(header.address, kv, bytes,
                              {.compute_cost_seconds = header.compute_cost_seconds,
                               .pinned = source->pinned() && CheckPinLimit(bytes).ok(),
                               .label = header.label},
                              header.created);
      entry->arriving = arriving;
      entry->unused = true;
      handle = is_use ? HitLocked(entry, &reads) : HandleOf(entry, &reads);
      ++(is_use ? stats_.lower_hits : stats_.prefetched);
    }
  }
  deferred.Run();
  return handle;
}

void ChunkStore::OfferToLower(const Entry& entry) {
  if (lower_.empty() || !entry.is_whole()) return;
  lower_.Write(entry.address, entry.kv, entry.pinned,
               {.label = entry.label,
                .compute_cost_seconds = entry.compute_cost_seconds,
                .frequency = FrequencyOf(entry),
                .created = entry.created});
}

absl::Status ChunkStore::WaitUntilDurable(const ChunkKey& key, absl::Time deadline) {
  return lower_.WaitUntilDurable(key, deadline);
}

absl::Status ChunkStore::FlushWrites(absl::Time deadline) { return lower_.FlushWrites(deadline); }

}  // namespace kvblend::store
