// The disk tier's Erase, Pin and Unpin.
#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/disk/disk_tier_claim.h"

namespace kvblend::store {
namespace {

/// Gone is gone, whoever did it.
absl::Status UnlinkIfThere(FileSystem& fs, const std::string& path) {
  absl::Status status = fs.Unlink(path);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status AsUnavailable(const absl::Status& status) {
  if (status.ok() || absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

}  // namespace

absl::StatusOr<bool> DiskTier::Erase(NamespaceFilter filter, const ChunkKey& key) {
  const Claim claim(*this, key);
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = FindLocked(filter, key);
    if (!slot.has_value()) return false;
    index_.Erase(*slot);
    ++stats_.erased;
  }
  // Its pin last: a pin without an entry is removed at start, an entry without its pin would be an unpinned
  // one.
  absl::Status status = UnlinkIfThere(fs_, paths_.Entry(key));
  if (status.ok()) status = UnlinkIfThere(fs_, paths_.Pin(key));
  if (status.ok()) status = fs_.SyncFolder(paths_.Folder(key));
  if (status.ok()) return true;
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.delete_failures;
  }
  write_health_.Report(status);
  return AsUnavailable(status);
}

absl::Status DiskTier::Pin(NamespaceFilter filter, const ChunkKey& key) {
  return SetPinned(filter, key, true);
}

absl::Status DiskTier::Unpin(NamespaceFilter filter, const ChunkKey& key) {
  return SetPinned(filter, key, false);
}

absl::Status DiskTier::SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) {
  const Claim claim(*this, key);
  {
    absl::MutexLock lock(&mutex_);
    const std::optional<Index::Slot> slot = FindLocked(filter, key);
    if (!slot.has_value()) return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), " is not on disk"));
    if (index_.at(*slot).pinned == pinned) return absl::OkStatus();
  }
  const std::string path = paths_.Pin(key);
  absl::Status status;
  if (pinned) {
    status = fs_.Open(path, OpenMode::kCreate).status();
    if (absl::IsAlreadyExists(status)) status = absl::OkStatus();
  } else {
    status = UnlinkIfThere(fs_, path);
  }
  if (status.ok()) {
    status = fs_.SyncFolder(paths_.Folder(key));
    if (!status.ok() && pinned) fs_.Unlink(path).IgnoreError();
  }
  write_health_.Report(status);
  if (!status.ok()) return AsUnavailable(status);
  absl::MutexLock lock(&mutex_);
  // Still there: only who has the claim takes it out.
  index_.SetPinned(*index_.Find(key), pinned);
  return absl::OkStatus();
}

}  // namespace kvblend::store
