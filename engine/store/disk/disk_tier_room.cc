// How a disk tier makes room: what goes, and what becomes of files that do not.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/store/disk/disk_tier.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {
namespace {

/// Of one attempt to make room: a disk that refuses to remove files may take long to say so.
constexpr int64_t kMaxFailedDeletions = 8;
constexpr absl::Duration kRetryInterval = absl::Minutes(1);
constexpr int64_t kMaxRetriedFiles = 16;
constexpr int64_t kMaxRetriedEntries = 64;

}  // namespace

absl::Status DiskTier::ReserveRoom(const std::string& tenant_namespace, int64_t bytes) {
  RetryDeletions();
  absl::Status failure;
  for (int64_t num_failed = 0; num_failed < kMaxFailedDeletions;) {
    absl::StatusOr<std::vector<Index::Victim>> victims;
    {
      absl::MutexLock lock(&mutex_);
      victims = index_.Reserve(tenant_namespace, bytes);
      if (!victims.ok() && failure.ok()) {
        ++stats_.put_rejections;
        return victims.status();
      }
    }
    if (!victims.ok()) break;
    const Deletion deletion = Delete(*victims);
    if (deletion.failure.ok()) return absl::OkStatus();
    failure.Update(deletion.failure);
    num_failed += deletion.num_failed;
    absl::MutexLock lock(&mutex_);
    index_.EndReservation(tenant_namespace, bytes);
  }
  return absl::UnavailableError(
      absl::StrCat(options_.path, ": no room, for files can't be removed: ", failure.message()));
}

DiskTier::Deletion DiskTier::Delete(const std::vector<Index::Victim>& victims) {
  Deletion deletion;
  for (const Index::Victim& victim : victims) {
    const ChunkKey& key = victim.info.key;
    const bool tries = deletion.num_failed < kMaxFailedDeletions;
    absl::Status status;
    if (tries) {
      // An open entry can be read after its file is gone.
      absl::StatusOr<std::shared_ptr<LowerTierEntry>> entry = absl::NotFoundError("not asked for");
      if (eviction_listener_ && victim.frequency > 1) {
        entry = OpenFile(key, victim.generation, /*pinned=*/false, /*goes=*/true);
      }
      status = files_.Unlink(key);
      if (status.ok() && entry.ok()) eviction_listener_(*std::move(entry), victim.frequency);
    }
    if (!status.ok()) {
      WarnOfUndeleted(status);
      deletion.failure.Update(status);
      ++deletion.num_failed;
    }
    absl::MutexLock lock(&mutex_);
    if (tries && status.ok()) {
      ++deletion.num_deleted;
      ++stats_.evictions;
      stats_.evicted_bytes += victim.info.bytes;
      if (victim.was_stuck) last_retry_ = absl::InfinitePast();  // others may go as well now
    } else {
      index_.PutBack(victim, /*stuck=*/tries);
    }
    index_.Unclaim(key);
  }
  return deletion;
}

std::vector<absl::StatusOr<bool>> DiskTier::EraseClaimed(NamespaceFilter filter,
                                                         absl::Span<const ChunkKey> keys) {
  std::vector<absl::StatusOr<bool>> outcomes(keys.size(), false);
  struct Erasure {
    size_t at;  // in keys
    bool is_new;
  };
  std::vector<Erasure> erasures;
  std::vector<ChunkKey> erased;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::optional<Index::Slot> slot = index_.FindAny(filter, keys[i]);
      if (slot.has_value()) {
        LeaveAlone(*slot);  // until its file is gone
        ++stats_.erased;
      } else if (index_.FindAny(keys[i]).has_value() || !left_alone_.contains(keys[i])) {
        continue;
      }
      erasures.push_back({i, slot.has_value()});
      erased.push_back(keys[i]);
    }
  }
  const std::vector<absl::Status> statuses = files_.EraseAll(erased);
  absl::Status failure;
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < erased.size(); ++i) {
      if (statuses[i].ok()) {
        ForgetLeftAlone(erased[i]);
        outcomes[erasures[i].at] = true;
        continue;
      }
      if (erasures[i].is_new) undeleted_.push_back(erased[i]);
      outcomes[erasures[i].at] = AsUnavailable(statuses[i]);
      failure.Update(statuses[i]);
    }
  }
  if (!failure.ok()) {
    WarnOfUndeleted(failure);
    write_health_.Report(failure);
  }
  return outcomes;
}

void DiskTier::WarnOfUndeleted(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (!warn_undeleted_.IsDue()) return;
  }
  spdlog::warn(
      "chunk store on disk: {} has a file that can't be removed; it takes up room until a later try removes "
      "it: {}",
      options_.path, status.ToString());
}

void DiskTier::RetryDeletions() {
  std::vector<ChunkKey> keys;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = options_.now();
    // A clock that was set back must not put it off.
    if (now >= last_retry_ && now < last_retry_ + kRetryInterval) return;
    last_retry_ = now;
    index_.RetryStuck(kMaxRetriedEntries);
    for (auto left = std::min(kMaxRetriedFiles, static_cast<int64_t>(undeleted_.size())); left > 0; --left) {
      const ChunkKey key = undeleted_.front();
      undeleted_.pop_front();
      const auto found = left_alone_.find(key);
      if (found == left_alone_.end() || found->second.held_bytes == 0) continue;
      if (index_.IsClaimed(key)) {
        undeleted_.push_back(key);
      } else {
        index_.Claim(key);
        keys.push_back(key);
      }
    }
  }
  int64_t num_deleted = 0;
  for (const ChunkKey& key : keys) {
    const absl::Status status = files_.Erase(key);
    if (!status.ok()) WarnOfUndeleted(status);
    absl::MutexLock lock(&mutex_);
    if (status.ok()) {
      ForgetLeftAlone(key);
      ++num_deleted;
    } else {
      undeleted_.push_back(key);
    }
    index_.Unclaim(key);
  }
  absl::MutexLock lock(&mutex_);
  if (num_deleted > 0) last_retry_ = absl::InfinitePast();
}

void DiskTier::ForgetLeftAlone(const ChunkKey& key) {
  const auto left = left_alone_.find(key);
  if (left->second.held_bytes > 0) index_.EndHold(left->second.tenant_namespace, left->second.held_bytes);
  left_alone_.erase(left);
}

absl::Status DiskTier::MakeRoomOnDisk(int64_t bytes) {
  int64_t free_bytes = 0;
  const auto shortage = [&]() -> int64_t {
    const absl::StatusOr<Space> space = fs_.SpaceOf(options_.path);
    if (!space.ok()) return 0;  // then writing finds out
    free_bytes = space->available_bytes;
    absl::MutexLock lock(&mutex_);
    return index_.reserved_bytes() + options_.min_free_bytes - space->available_bytes;  // with `bytes`
  };
  int64_t missing = shortage();
  if (missing <= 0) return absl::OkStatus();
  std::vector<Index::Victim> victims;
  bool warns = false;
  {
    absl::MutexLock lock(&mutex_);
    victims = index_.EvictAtLeast(missing);
    warns = !victims.empty() && warn_short_of_space_.IsDue();
  }
  if (warns) {
    spdlog::warn("chunk store on disk: {} has {} bytes free; allowed: {}; {} chunks are evicted for it",
                 options_.path, free_bytes, options_.min_free_bytes, victims.size());
  }
  const Deletion deletion = Delete(victims);
  {
    absl::MutexLock lock(&mutex_);
    stats_.evictions_for_space += deletion.num_deleted;
  }
  missing = shortage();
  if (missing <= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(options_.path, ": writing ", bytes, " bytes takes ", missing,
                   " bytes more than the disk has room for; at least ", options_.min_free_bytes,
                   " must stay free", deletion.failure.ok() ? "" : "; ", deletion.failure.message()));
}

void DiskTier::LimitNamespaces(const std::map<std::string, int64_t>& bytes) {
  std::vector<Index::Victim> victims;
  {
    absl::MutexLock lock(&mutex_);
    victims = index_.LimitNamespaces(bytes);
  }
  Delete(victims);
}

std::optional<int64_t> DiskTier::RoomOf(const std::string& tenant_namespace) const {
  const absl::StatusOr<Space> space = fs_.SpaceOf(options_.path);
  absl::MutexLock lock(&mutex_);
  const int64_t quota = index_.QuotaOf(tenant_namespace);
  if (!space.ok()) return quota;
  // What other entries take can be given up for this namespace's.
  return std::clamp<int64_t>(index_.bytes() + space->available_bytes - options_.min_free_bytes, 0, quota);
}

void DiskTier::LeaveAlone(Index::Slot slot) {
  const ChunkInfo info = index_.InfoOf(slot);
  index_.Erase(slot);
  index_.HoldRoom(info.tenant_namespace, info.bytes);
  left_alone_[info.key] = {info.pinned, info.tenant_namespace, info.bytes};
}

}  // namespace kvblend::store
