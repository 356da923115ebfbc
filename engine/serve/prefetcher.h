// Brings what a queued prompt will need into host memory while others compute.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/store/chunk_store.h"

namespace kvblend {

/// What one prompt asked for. As long as it lives, what has been found stays in host memory; drop it once the
/// prompt has looked up its chunks, or is given up. Thread-safe.
class Prefetch {
 public:
  Prefetch(std::vector<ChunkKey> keys, std::atomic<int64_t>& held_bytes)
      : keys_(std::move(keys)), held_bytes_(held_bytes) {}
  ~Prefetch();

 private:
  friend class PrefetchQueue;

  const std::vector<ChunkKey> keys_;
  std::atomic<int64_t>& held_bytes_;  // of all prefetches together
  absl::Mutex mutex_;
  std::vector<store::ChunkHandle> held_ ABSL_GUARDED_BY(mutex_);
  int64_t own_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

/// What prompts that wait asked for, and have not got yet. Thread-safe.
class PrefetchQueue {
 public:
  /// Nothing more is begun while prompts that wait hold this share of host memory already.
  static constexpr double kMaxHeldShare = 0.25;

  /// `chunk_store` must outlive this, and this every Prefetch.
  PrefetchQueue(store::ChunkStore& chunk_store, int64_t chunk_store_bytes)
      : chunk_store_(chunk_store),
        max_held_bytes_(static_cast<int64_t>(kMaxHeldShare * static_cast<double>(chunk_store_bytes))) {}

  /// Returns at once.
  std::shared_ptr<Prefetch> Add(std::vector<ChunkKey> keys);

  /// Waits for the next one, and looks it up, which may block. False: there will be none.
  bool LookUpNext();
  /// LookUpNext ends with what it is doing now.
  void Stop();

 private:
  store::ChunkStore& chunk_store_;
  const int64_t max_held_bytes_;
  std::atomic<int64_t> held_bytes_{0};

  absl::Mutex mutex_;
  std::deque<std::weak_ptr<Prefetch>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

/// One thread, which looks chunks up in the order of the prompts: tiers below host memory may make it wait,
/// and neither clients' threads nor the engine's should. Thread-safe.
class Prefetcher {
 public:
  /// As PrefetchQueue.
  Prefetcher(store::ChunkStore& chunk_store, int64_t chunk_store_bytes);
  ~Prefetcher();

  /// Returns at once.
  std::shared_ptr<Prefetch> Start(std::vector<ChunkKey> keys) { return queue_.Add(std::move(keys)); }

 private:
  PrefetchQueue queue_;
  std::thread thread_;  // last: it uses the queue
};

}  // namespace kvblend
