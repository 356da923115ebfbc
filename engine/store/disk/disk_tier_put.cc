// The disk tier's Put: making room, and writing an entry so that it is there whole or not at all.
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/disk/disk_tier_claim.h"

namespace kvblend::store {
namespace {

absl::Span<const std::byte> AsBytes(std::string_view bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

absl::Status DiskTier::Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) {
  if (kv.format() != address.format || kv.num_tokens() != address.num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("disk tier: KV of ", kv.num_tokens(),
                                                   " tokens is not of the shape that its address names (",
                                                   address.num_tokens, " tokens), or of another format"));
  }
  if (!std::isfinite(options.compute_cost_seconds) || options.compute_cost_seconds < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "disk tier: compute_cost_seconds is ", options.compute_cost_seconds, "; allowed: finite and >= 0"));
  }
  const Claim claim(*this, address.key);
  return PutClaimed(address, kv, options);
}

absl::Status DiskTier::PutClaimed(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) {
  const ChunkKey& key = address.key;
  std::optional<Index::Slot> old;  // keeps its meaning: only who has the claim takes the entry out
  bool is_sound = false;
  {
    absl::MutexLock lock(&mutex_);
    old = index_.Find(key);
    is_sound = old.has_value() && !index_.at(*old).suspect;
  }
  absl::Status status;
  if (is_sound) {
    status = MakeEntryFolder(key);
    if (status.ok()) {
      absl::MutexLock lock(&mutex_);
      ++stats_.duplicate_puts;
      return status;
    }
  } else {
    EntryHeader header{.address = address,
                       .label = options.label,
                       .compute_cost_seconds = options.compute_cost_seconds,
                       .created = absl::FromUnixMicros(absl::ToUnixMicros(
                           options.created == absl::InfinitePast() ? options_.now() : options.created)),
                       .layers = ChecksumsOf(kv)};
    KVBLEND_ASSIGN_OR_RETURN(const std::string header_bytes, EncodeEntryHeader(header));
    const int64_t bytes = header.total_bytes();
    if (absl::Status room = MakeRoom(address, bytes); !room.ok()) {
      absl::MutexLock lock(&mutex_);
      ++stats_.put_rejections;
      return room;
    }
    status = MakeRoomOnDisk(bytes);
    if (status.ok()) status = WriteEntry(key, header_bytes, kv, old.has_value());
    absl::MutexLock lock(&mutex_);
    reserved_bytes_ -= bytes;
    if (status.ok()) {
      const bool pinned = old.has_value() && index_.at(*old).pinned;
      if (old.has_value()) index_.Erase(*old);
      const Index::Slot slot = index_.Insert({.address = address,
                                              .label = header.label,
                                              .compute_cost_seconds = header.compute_cost_seconds,
                                              .created = header.created,
                                              .bytes = bytes,
                                              .frequency = options.frequency});
      index_.SetBusy(slot, true);  // until the claim goes
      index_.SetPinned(slot, pinned);
      ++stats_.puts;
      stats_.put_bytes += bytes;
    }
  }
  write_health_.Report(status);
  if (status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  ++stats_.put_failures;
  if (absl::IsResourceExhausted(status)) return status;
  return absl::UnavailableError(status.message());
}

// --- room

void DiskTier::TakeVictim(std::vector<Victim>& victims, Index::Slot slot) {
  const Index::Entry& entry = index_.at(slot);
  const ChunkKey key = entry.key;
  ++stats_.evictions;
  stats_.evicted_bytes += entry.bytes;
  victims.push_back({key, entry.generation, Index::FrequencyOf(entry)});
  index_.Erase(slot);
  claimed_.insert(key);  // nobody has it: claimed entries are no victims
}

void DiskTier::DeleteVictims(const std::vector<Victim>& victims) {
  for (const Victim& victim : victims) {
    // An open entry can be read after its file is gone.
    if (eviction_listener_ && victim.frequency > 1) {
      absl::StatusOr<std::shared_ptr<DiskEntry>> entry = OpenFile(victim.key, victim.generation, false);
      if (entry.ok()) eviction_listener_(*std::move(entry), victim.frequency);
    }
    const absl::Status status = fs_.Unlink(paths_.Entry(victim.key));
    absl::MutexLock lock(&mutex_);
    claimed_.erase(victim.key);
    if (!status.ok() && !absl::IsNotFound(status)) ++stats_.delete_failures;
  }
}

absl::Status DiskTier::MakeRoom(const ChunkAddress& address, int64_t bytes) {
  std::vector<Victim> victims;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t kept = index_.bytes() - index_.evictable_bytes() + reserved_bytes_;
    if (bytes > options_.quota_bytes - kept) {
      return absl::ResourceExhaustedError(
          absl::StrCat("disk tier: ", bytes, " bytes needed; of the quota of ", options_.quota_bytes,
                       " bytes ", kept, " are pinned (", index_.pinned_bytes(), ") or being written"));
    }
    const std::string& owner = address.tenant_namespace;
    const bool limited = options_.namespace_quotas.limited();
    const int64_t quota = options_.namespace_quotas.BytesOf(owner, options_.quota_bytes);
    if (limited) {
      const int64_t kept_of_owner = index_.BytesOf(owner) - index_.EvictableBytesOf(owner);
      if (bytes > quota - kept_of_owner) {
        return absl::ResourceExhaustedError(absl::StrCat("disk tier: ", bytes, " bytes needed; namespace '",
                                                         owner, "' may fill ", quota, " bytes, of which ",
                                                         kept_of_owner, " are pinned"));
      }
    }
    while (limited && bytes > quota - index_.BytesOf(owner)) TakeVictim(victims, *index_.PopVictimOf(owner));
    while (index_.bytes() + reserved_bytes_ > options_.quota_bytes - bytes) {
      TakeVictim(victims, *index_.PopVictim());
    }
    reserved_bytes_ += bytes;
  }
  DeleteVictims(victims);
  return absl::OkStatus();
}

void DiskTier::EvictToQuota() {
  std::vector<Victim> victims;
  {
    absl::MutexLock lock(&mutex_);
    while (index_.bytes() > options_.quota_bytes) {
      const std::optional<Index::Slot> slot = index_.PopVictim();
      if (!slot.has_value()) break;  // only pinned ones are left
      TakeVictim(victims, *slot);
    }
  }
  DeleteVictims(victims);
}

absl::Status DiskTier::MakeRoomOnDisk(int64_t bytes) {
  const auto shortage = [&]() -> int64_t {
    const absl::StatusOr<Space> space = fs_.SpaceOf(options_.path);
    if (!space.ok()) return 0;  // writing will tell
    absl::MutexLock lock(&mutex_);
    return reserved_bytes_ + options_.min_free_bytes - space->available_bytes;  // `bytes` are reserved
  };
  int64_t missing = shortage();
  if (missing <= 0) return absl::OkStatus();
  std::vector<Victim> victims;
  {
    absl::MutexLock lock(&mutex_);
    // Nothing is given up for what would not fit anyway.
    for (int64_t freed = 0; missing <= index_.evictable_bytes() + freed && freed < missing;) {
      const Index::Slot slot = *index_.PopVictim();
      freed += index_.at(slot).bytes;
      TakeVictim(victims, slot);
    }
  }
  DeleteVictims(victims);
  missing = shortage();
  if (missing <= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      options_.path, ": writing ", bytes, " bytes would leave ", options_.min_free_bytes - missing,
      " bytes of the disk free; ", "at least ", options_.min_free_bytes, " must stay free"));
}

// --- writing

absl::Status DiskTier::WriteEntry(const ChunkKey& key, std::string_view header, const ChunkKv& kv,
                                  bool replaces) {
  uint64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = next_temporary_++;
  }
  const std::string temporary = paths_.Temporary(key, number);
  const std::string path = paths_.Entry(key);
  absl::StatusOr<std::unique_ptr<File>> file = fs_.Open(temporary, OpenMode::kCreate);
  if (!file.ok()) return file.status();
  absl::Status status = WriteFully(**file, 0, AsBytes(header));
  auto offset = static_cast<int64_t>(header.size());
  for (int32_t layer = 0; status.ok() && layer < kv.format().num_layers; ++layer) {
    status = WriteFully(**file, offset, kv.LayerBytes(layer));
    offset += kv.layer_bytes();
  }
  // Before the rename: a name must never stand for bytes that may still be lost.
  if (status.ok()) status = (*file)->Sync();
  file->reset();
  if (status.ok()) status = MakeEntryFolder(key);
  if (status.ok()) status = fs_.Rename(temporary, path);
  if (!status.ok()) {
    fs_.Unlink(temporary).IgnoreError();
    return status;
  }
  status = fs_.SyncFolder(paths_.Folder(key));
  // An entry that was replaced stays: old or new file, each is the chunk's.
  if (!status.ok() && !replaces) fs_.Unlink(path).IgnoreError();
  return status;
}

absl::Status DiskTier::MakeEntryFolder(const ChunkKey& key) {
  const auto number = static_cast<uint16_t>(key.digest()[0] << 8 | key.digest()[1]);
  {
    absl::MutexLock lock(&mutex_);
    if (durable_folders_.contains(number)) return absl::OkStatus();
  }
  // A folder that is there may have been made, and its files renamed into it, by a process that died before
  // it synced them: what this process relies on, it has synced itself.
  const std::string outer = paths_.OuterFolder(key);
  const std::string inner = paths_.Folder(key);
  for (const std::string& folder : {outer, inner}) {
    const absl::Status made = fs_.MakeFolder(folder);
    if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  }
  for (const std::string& folder : {paths_.Entries(), outer, inner}) {
    KVBLEND_RETURN_IF_ERROR(fs_.SyncFolder(folder));
  }
  absl::MutexLock lock(&mutex_);
  durable_folders_.insert(number);
  return absl::OkStatus();
}

}  // namespace kvblend::store
