#include "engine/store/disk/disk_entry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/disk/disk_tier_claim.h"
#include "engine/store/disk/read_header.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {

absl::StatusOr<std::shared_ptr<LowerTierEntry>> DiskTier::OpenEntry(const ChunkKey& key) {
  uint64_t generation = 0;
  bool pinned = false;
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = index_.Find(key);
    if (!slot.has_value()) return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not on disk"));
    generation = index_.at(*slot).generation;
    pinned = index_.at(*slot).pinned;
  }
  absl::StatusOr<std::shared_ptr<DiskEntry>> entry = OpenFile(key, generation, pinned);
  if (entry.ok()) {
    absl::MutexLock lock(&mutex_);
    ++stats_.opens;
    if (const auto slot = index_.Find(key); slot && IsGeneration(*slot, generation)) {
      index_.Touch(*slot, options_.now());
    }
  } else if (absl::IsNotFound(entry.status())) {
    absl::MutexLock lock(&mutex_);
    const auto slot = index_.Find(key);
    // Nobody is at it, so nobody of us removed the file.
    if (slot && IsGeneration(*slot, generation) && !index_.at(*slot).busy) {
      index_.Erase(*slot);
      ++stats_.vanished;
    }
  } else {
    ReportRead(key, generation, entry.status(), 0);
  }
  return entry;
}

std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> DiskTier::OpenEntries(
    absl::Span<const ChunkKey> keys, absl::Time /*deadline*/) {
  std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> entries;
  entries.reserve(keys.size());
  for (const ChunkKey& key : keys) entries.push_back(OpenEntry(key));
  return entries;
}

absl::StatusOr<std::shared_ptr<DiskEntry>> DiskTier::OpenFile(const ChunkKey& key, uint64_t generation,
                                                              bool pinned) {
  absl::StatusOr<std::unique_ptr<File>> file = fs_.Open(paths_.Entry(key), OpenMode::kReadDirect);
  if (!file.ok()) return file.status();
  absl::StatusOr<EntryHeader> header = internal::ReadHeader(**file, key);
  if (header.ok()) {
    return std::shared_ptr<DiskEntry>(
        new DiskEntry(*this, generation, *std::move(file), *std::move(header), pinned));
  }
  // This build wrote or accepted it before, so it is no newer version: the version's own bytes are damaged.
  if (absl::IsUnimplemented(header.status())) return absl::DataLossError(header.status().message());
  return header.status();
}

absl::StatusOr<ReadId> DiskEntry::ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                            absl::AnyInvocable<void(absl::Status)> done) {
  if (layer < 0 || layer >= header_.address.format.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer is ", layer, "; allowed: 0 to ", header_.address.format.num_layers - 1));
  }
  const int64_t bytes = header_.layer_bytes();
  if (static_cast<int64_t>(out.size()) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer for a layer is ", out.size(), " bytes; allowed: ", bytes));
  }
  if (reinterpret_cast<uintptr_t>(out.data()) % kDirectAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("buffer for a layer is not aligned to ", kDirectAlignment, " bytes"));
  }
  return tier_.reads_->Submit(
      {.file = file_,
       .offset = header_.header_bytes() + layer * bytes,
       .out = out,
       .priority = priority,
       .done = [self = shared_from_this(), layer, out, done = std::move(done)](absl::Status status) mutable {
         if (status.ok()) status = VerifyLayer(self->header_, layer, out);
         self->tier_.ReportRead(self->header_.address.key, self->generation_, status,
                                static_cast<int64_t>(out.size()));
         done(std::move(status));
       }});
}

void DiskEntry::CancelRead(ReadId id) { tier_.reads_->Cancel(id); }

void DiskTier::ReportRead(const ChunkKey& key, uint64_t generation, const absl::Status& status,
                          int64_t bytes) {
  if (absl::IsCancelled(status)) {
    absl::MutexLock lock(&mutex_);
    ++stats_.cancelled_reads;
    return;
  }
  if (absl::IsDataLoss(status)) {
    {
      absl::MutexLock lock(&mutex_);
      ++stats_.read_errors;
    }
    return Quarantine(key, generation, status);
  }
  read_health_.Report(status);
  absl::MutexLock lock(&mutex_);
  if (status.ok()) {
    ++stats_.reads;
    stats_.read_bytes += bytes;
  } else {
    ++stats_.read_errors;
  }
  // A device's error says nothing of the bytes, which may be read another time; but should somebody have the
  // chunk's KV meanwhile, Put writes it anew.
  if (const auto slot = index_.Find(key); slot && IsGeneration(*slot, generation)) {
    index_.SetSuspect(*slot, !status.ok());
  }
}

void DiskTier::Quarantine(const ChunkKey& key, uint64_t generation, const absl::Status& reason) {
  const Claim claim(*this, key);
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = index_.Find(key);
    if (!slot.has_value() || !IsGeneration(*slot, generation)) return;  // it was replaced or is gone
    index_.Erase(*slot);
    ++stats_.quarantined;
  }
  spdlog::warn("chunk store on disk: damaged entry set aside: {}", reason.ToString());
  MoveToQuarantine(key);
  fs_.Unlink(paths_.Pin(key)).IgnoreError();
}

void DiskTier::MoveToQuarantine(const ChunkKey& key) {
  bool is_kept = false;
  {
    absl::MutexLock lock(&mutex_);
    is_kept = ++stats_.quarantined_files <= options_.max_quarantined_files;
  }
  if (is_kept) is_kept = fs_.Rename(paths_.Entry(key), paths_.Quarantine(key)).ok();
  if (is_kept) return;
  // What can't be set aside is deleted; what can't be deleted either is found damaged again at the next
  // start.
  const absl::Status deleted = fs_.Unlink(paths_.Entry(key));
  absl::MutexLock lock(&mutex_);
  --stats_.quarantined_files;
  if (!deleted.ok()) ++stats_.delete_failures;
}

}  // namespace kvblend::store
