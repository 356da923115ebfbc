#include "kernels/cuda/runtime/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <vector>

#include "kernels/cuda/runtime/runtime.h"

namespace kvblend::kernels::cuda {

PinnedPool::~PinnedPool() {
  const absl::MutexLock lock(&mutex_);
  for (const auto& [bytes, data] : unused_) PinnedFree(data);
}

int64_t PinnedPool::BlockBytes(int64_t bytes) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  const int64_t step = std::max<int64_t>(power / 8, 4096);
  return RoundUp(bytes, step);
}

void* PinnedPool::Take(int64_t bytes) {
  const int64_t block = BlockBytes(bytes);
  {
    const absl::MutexLock lock(&mutex_);
    used_bytes_ += block;
    if (const auto found = unused_.find(block); found != unused_.end()) {
      void* data = found->second;
      unused_.erase(found);
      unused_bytes_ -= block;
      return data;
    }
  }
  const auto data = PinnedAllocate(block);
  if (data.ok()) return *data;
  const absl::MutexLock lock(&mutex_);
  used_bytes_ -= block;
  return nullptr;
}

void PinnedPool::Return(void* data, int64_t bytes) {
  const int64_t block = BlockBytes(bytes);
  std::vector<void*> surplus;
  {
    const absl::MutexLock lock(&mutex_);
    used_bytes_ -= block;
    unused_.emplace(block, data);
    unused_bytes_ += block;
    while (unused_bytes_ > kUnusedBytes + used_bytes_ / 8) {
      const auto largest = std::prev(unused_.end());
      unused_bytes_ -= largest->first;
      surplus.push_back(largest->second);
      unused_.erase(largest);
    }
  }
  for (void* unneeded : surplus) PinnedFree(unneeded);
}

}  // namespace kvblend::kernels::cuda
