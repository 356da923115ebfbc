// Which entries are being erased while others read them in the tiers.
#pragma once

#include <cstdint>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::store {

/// An entry that was opened can still be read when its file is gone. To keep a copy of an entry, begin a
/// Watch before opening it, and ask the Watch before keeping the copy; otherwise an erasure in between would
/// be undone. Thread-safe; must outlive its scopes and watches.
class Erasures {
 public:
  /// While it lives, the erasure of one key is under way.
  class Scope {
   public:
    Scope(Erasures& erasures, const ChunkKey& key) : erasures_(erasures), key_(key) {
      absl::MutexLock lock(&erasures_.mutex_);
      ++erasures_.running_[key_];
    }
    ~Scope() { erasures_.End(key_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Erasures& erasures_;
    const ChunkKey key_;
  };

  class Watch {
   public:
    explicit Watch(Erasures& erasures) : erasures_(erasures) {
      absl::MutexLock lock(&erasures_.mutex_);
      begin_ = erasures_.watches_.insert(erasures_.num_ended_);
    }
    ~Watch() { erasures_.Forget(begin_); }
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    /// Whether an erasure of `key` has ended since the watch began, or is under way.
    bool Erased(const ChunkKey& key) const {
      absl::MutexLock lock(&erasures_.mutex_);
      return erasures_.ErasedSince(*begin_, key);
    }
    /// Calls keep() unless the key is Erased; no erasure of it begins before keep() has returned.
    void KeepUnlessErased(const ChunkKey& key, absl::FunctionRef<void()> keep) const {
      absl::MutexLock lock(&erasures_.mutex_);
      if (!erasures_.ErasedSince(*begin_, key)) keep();
    }

   private:
    Erasures& erasures_;
    std::multiset<uint64_t>::const_iterator begin_;
  };

 private:
  void End(const ChunkKey& key) {
    absl::MutexLock lock(&mutex_);
    const auto running = running_.find(key);
    if (--running->second == 0) running_.erase(running);
    ++num_ended_;
    if (!watches_.empty()) ended_[key] = num_ended_;
  }

  void Forget(std::multiset<uint64_t>::const_iterator begin) {
    constexpr size_t kMany = 4096;
    absl::MutexLock lock(&mutex_);
    watches_.erase(begin);
    if (watches_.empty()) {
      ended_.clear();
    } else if (ended_.size() > kMany) {
      const uint64_t oldest = *watches_.begin();
      absl::erase_if(ended_, [&](const auto& ended) { return ended.second <= oldest; });
    }
  }

  bool ErasedSince(uint64_t begin, const ChunkKey& key) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (running_.contains(key)) return true;
    const auto ended = ended_.find(key);
    return ended != ended_.end() && ended->second > begin;
  }

  mutable absl::Mutex mutex_;
  uint64_t num_ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<ChunkKey, int32_t> running_ ABSL_GUARDED_BY(mutex_);  // erasures under way
  // Key -> the number of the last erasure of it that ended; kept while there are watches.
  absl::flat_hash_map<ChunkKey, uint64_t> ended_ ABSL_GUARDED_BY(mutex_);
  std::multiset<uint64_t> watches_ ABSL_GUARDED_BY(mutex_);  // num_ended_ as they began
};

}  // namespace kvblend::store
