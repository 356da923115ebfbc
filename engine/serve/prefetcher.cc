#include "engine/serve/prefetcher.h"

#include <optional>
#include <utility>

namespace kvblend {

Prefetch::~Prefetch() {
  absl::MutexLock lock(&mutex_);
  held_bytes_ -= own_bytes_;
}

std::shared_ptr<Prefetch> PrefetchQueue::Add(std::vector<ChunkKey> keys) {
  auto prefetch = std::make_shared<Prefetch>(std::move(keys), held_bytes_);
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(prefetch);
  return prefetch;
}

void PrefetchQueue::Stop() {
  absl::MutexLock lock(&mutex_);
  stop_ = true;
}

bool PrefetchQueue::LookUpNext() {
  std::weak_ptr<Prefetch> next;
  {
    absl::MutexLock lock(&mutex_);
    const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || !waiting_.empty(); };
    mutex_.Await(absl::Condition(&work));
    if (stop_) return false;
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  const std::shared_ptr<Prefetch> prefetch = next.lock();
  // A prompt whose turn has come already does not need it any more.
  if (prefetch == nullptr || held_bytes_ >= max_held_bytes_) return true;
  std::vector<std::optional<store::ChunkHandle>> found =
      chunk_store_.Prefetch(prefetch->keys_, store::ReadFor::kQueuedPrompt);
  absl::MutexLock lock(&prefetch->mutex_);
  for (std::optional<store::ChunkHandle>& handle : found) {
    if (!handle.has_value()) continue;
    prefetch->own_bytes_ += handle->size_bytes();
    prefetch->held_.push_back(*std::move(handle));
  }
  held_bytes_ += prefetch->own_bytes_;
  return true;
}

Prefetcher::Prefetcher(store::ChunkStore& chunk_store, int64_t chunk_store_bytes)
    : queue_(chunk_store, chunk_store_bytes), thread_([this] {
        while (queue_.LookUpNext()) {
        }
      }) {}

Prefetcher::~Prefetcher() {
  queue_.Stop();
  thread_.join();
}

}  // namespace kvblend
