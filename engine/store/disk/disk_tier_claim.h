// The right to change the files of one key. Private to this folder.
#pragma once

#include "absl/synchronization/mutex.h"
#include "engine/store/disk/disk_tier.h"

namespace kvblend::store {

/// Waits for whoever has it. While claimed, nobody else writes, deletes or moves the key's files, and the
/// entry is not evicted.
class DiskTier::Claim {
 public:
  Claim(DiskTier& tier, const ChunkKey& key) : tier_(tier), key_(key) {
    absl::MutexLock lock(&tier_.mutex_);
    const auto is_free = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !tier_.claimed_.contains(key_); };
    tier_.mutex_.Await(absl::Condition(&is_free));
    tier_.claimed_.insert(key_);
    if (const auto slot = tier_.index_.Find(key_)) tier_.index_.SetBusy(*slot, true);
  }
  ~Claim() {
    absl::MutexLock lock(&tier_.mutex_);
    tier_.claimed_.erase(key_);
    if (const auto slot = tier_.index_.Find(key_)) tier_.index_.SetBusy(*slot, false);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  DiskTier& tier_;
  const ChunkKey key_;
};

}  // namespace kvblend::store
