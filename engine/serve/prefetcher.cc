#include "engine/serve/prefetcher.h"

#include <optional>
#include <utility>

namespace kvblend {

Prefetch::~Prefetch() {
  absl::MutexLock lock(&mutex_);
  held_bytes_ -= own_bytes_;
}

Prefetcher::Prefetcher(store::ChunkStore& chunk_store, int64_t chunk_store_bytes)
    : chunk_store_(chunk_store),
      max_held_bytes_(static_cast<int64_t>(kMaxHeldShare * static_cast<double>(chunk_store_bytes))),
      thread_([this] { Run(); }) {}

Prefetcher::~Prefetcher() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

std::shared_ptr<Prefetch> Prefetcher::Start(std::vector<ChunkKey> keys) {
  auto prefetch = std::make_shared<Prefetch>(std::move(keys), held_bytes_);
  absl::MutexLock lock(&mutex_);
  queue_.push_back(prefetch);
  return prefetch;
}

void Prefetcher::WaitUntilIdle() {
  absl::MutexLock lock(&mutex_);
  const auto idle = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return queue_.empty() && !busy_; };
  mutex_.Await(absl::Condition(&idle));
}

void Prefetcher::Run() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || !queue_.empty(); };
    mutex_.Await(absl::Condition(&work));
    if (stop_) return;
    const std::weak_ptr<Prefetch> next = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    mutex_.Unlock();
    // A prompt whose turn has come already does not need it any more.
    if (std::shared_ptr<Prefetch> prefetch = next.lock();
        prefetch != nullptr && held_bytes_ < max_held_bytes_) {
      std::vector<std::optional<store::ChunkHandle>> found =
          chunk_store_.Prefetch(prefetch->keys_, store::ReadFor::kQueuedPrompt);
      absl::MutexLock prefetch_lock(&prefetch->mutex_);
      for (std::optional<store::ChunkHandle>& handle : found) {
        if (!handle.has_value()) continue;
        prefetch->own_bytes_ += handle->size_bytes();
        prefetch->held_.push_back(*std::move(handle));
      }
      held_bytes_ += prefetch->own_bytes_;
    }
    mutex_.Lock();
    busy_ = false;
  }
}

}  // namespace kvblend
