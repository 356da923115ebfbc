// The part of ChunkStore that moves entries to the tier below host memory and back.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/store/chunk_store.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {

std::optional<ChunkHandle> ChunkStore::Fetch(const ChunkKey& key, PromptReads* reads) {
  if (lower_ == nullptr) return std::nullopt;
  {
    absl::MutexLock lock(&mutex_);
    if (IsUnreadable(key)) return std::nullopt;
  }
  const std::optional<ChunkInfo> below = lower_->Stat(kAllNamespaces, key);
  if (!below.has_value()) return std::nullopt;
  absl::StatusOr<std::shared_ptr<LowerTierEntry>> source = lower_->OpenEntry(key);
  if (!source.ok()) return std::nullopt;
  const EntryHeader& header = (*source)->header();
  absl::StatusOr<std::unique_ptr<ChunkKv>> allocated =
      ChunkKv::Allocate(header.address.format, header.address.num_tokens);
  if (!allocated.ok()) return std::nullopt;
  const std::shared_ptr<ChunkKv> kv = *std::move(allocated);
  const auto arriving = std::make_shared<ArrivingKv>(*std::move(source), kv);

  std::optional<ChunkHandle> handle;
  bool added = false;
  Deferred deferred;
  {
    absl::MutexLock lock(&mutex_);
    if (Entry* resident = FindUsable(key, deferred); resident != nullptr) {
      handle = HitLocked(resident);  // someone else was faster
    } else if (const int64_t bytes = kv->size_bytes() + kEntryOverheadBytes; MakeRoom(bytes, deferred).ok()) {
      Entry* entry = AddEntry(header.address, kv, bytes,
                              {.compute_cost_seconds = header.compute_cost_seconds,
                               .pinned = below->pinned && CheckPinLimit(bytes).ok(),
                               .label = header.label},
                              header.created);
      entry->arriving = arriving;
      added = true;
      handle = HitLocked(entry);
      ++stats_.lower_hits;
    }
  }
  deferred.Run();
  if (added && reads != nullptr) reads->Add(arriving);
  if (added && reads == nullptr) PromptReads(NewPrompt()).Add(arriving);
  return handle;
}

void ChunkStore::WriteToLower(const ChunkHandle& handle, bool pinned) {
  const Entry& entry = *handle.entry_;
  if (write_behind_ == nullptr || lower_->Contains(entry.address.key)) return;
  if (entry.arriving != nullptr && !entry.arriving->complete()) return;  // not all of it is here
  write_behind_->Enqueue(
      entry.address, entry.kv, pinned,
      {.label = entry.label, .compute_cost_seconds = entry.compute_cost_seconds, .created = entry.created});
}

bool ChunkStore::EraseFromLower(NamespaceFilter filter, const ChunkKey& key) {
  if (lower_ == nullptr) return false;
  const absl::StatusOr<bool> erased = lower_->Erase(filter, key);
  if (erased.ok()) return *erased;
  // No lookup of this process finds it any more; one after a restart might.
  spdlog::warn("chunk {} was deleted, but not its file: {}", key.ToHex(),
               std::string(erased.status().message()));
  return true;
}

absl::Status ChunkStore::WaitUntilDurable(const ChunkKey& key, absl::Time deadline) {
  if (write_behind_ == nullptr) {
    return absl::FailedPreconditionError("the chunk store has no tier that outlives the process");
  }
  if (absl::Status s = write_behind_->WaitFor(key, deadline); !s.ok()) return s;
  if (lower_->Contains(key)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " was evicted or deleted meanwhile"));
}

absl::Status ChunkStore::FlushWrites(absl::Time deadline) {
  return write_behind_ == nullptr ? absl::OkStatus() : write_behind_->Flush(deadline);
}

}  // namespace kvblend::store
