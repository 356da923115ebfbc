// How a disk tier makes room.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/store/disk/disk_tier.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {

void DiskTier::Delete(const std::vector<Index::Victim>& victims) {
  for (const Index::Victim& victim : victims) {
    // An open entry can be read after its file is gone.
    if (eviction_listener_ && victim.frequency > 1) {
      absl::StatusOr<std::shared_ptr<LowerTierEntry>> entry = OpenFile(victim.key, victim.generation, false);
      if (entry.ok()) eviction_listener_(*std::move(entry), victim.frequency);
    }
    files_.Unlink(victim.key);
    absl::MutexLock lock(&mutex_);
    ++stats_.evictions;
    stats_.evicted_bytes += victim.bytes;
    index_.Unclaim(victim.key);
  }
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
    stats_.evictions_for_space += static_cast<int64_t>(victims.size());
    warns = !victims.empty() && warn_short_of_space_.IsDue();
  }
  if (warns) {
    spdlog::warn("chunk store on disk: {} has {} bytes free; allowed: {}; {} chunks are evicted for it",
                 options_.path, free_bytes, options_.min_free_bytes, victims.size());
  }
  Delete(victims);
  missing = shortage();
  if (missing <= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      options_.path, ": writing ", bytes, " bytes takes ", missing,
      " bytes more than the disk has room for; at least ", options_.min_free_bytes, " must stay free"));
}

void DiskTier::LimitNamespaces(const std::map<std::string, int64_t>& bytes) {
  std::vector<Index::Victim> victims;
  {
    absl::MutexLock lock(&mutex_);
    victims = index_.LimitNamespaces(bytes);
  }
  Delete(victims);
}

}  // namespace kvblend::store
