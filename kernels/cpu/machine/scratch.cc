#include "kernels/cpu/machine/scratch.h"

#include <algorithm>
#include <utility>

namespace kvblend::kernels {
namespace {

constexpr std::align_val_t kAlignment{64};

AlignedBytes Allocate(size_t bytes) {
  return AlignedBytes(static_cast<std::byte*>(::operator new(bytes, kAlignment, std::nothrow)));
}

struct ThreadBlock {
  AlignedBytes data;
  size_t size = 0;
};

}  // namespace

void* ThreadScratch(ScratchSlot slot, size_t bytes) {
  thread_local ThreadBlock blocks[static_cast<size_t>(ScratchSlot::kCount)];
  ThreadBlock& block = blocks[static_cast<size_t>(slot)];
  if (block.size < bytes || block.data == nullptr) {
    block.data = nullptr;
    block.size = 0;
    const size_t size = std::max<size_t>(bytes, 4096);
    block.data = Allocate(size);
    if (block.data == nullptr) throw std::bad_alloc();
    block.size = size;
  }
  return block.data.get();
}

ScratchPool::Lease ScratchPool::Borrow(size_t bytes) {
  bytes = std::max<size_t>(bytes, 4096);
  {
    absl::MutexLock lock(&mutex_);
    // The smallest that fits.
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if (it->size >= bytes && (best == free_.end() || it->size < best->size)) best = it;
    }
    if (best != free_.end()) {
      Lease lease(this, std::move(best->data), best->size);
      free_.erase(best);
      return lease;
    }
  }
  return Lease(this, Allocate(bytes), bytes);
}

void ScratchPool::Return(AlignedBytes data, size_t size) {
  // A few per concurrent operation are enough; the smallest goes when there are more.
  constexpr size_t kMaxFree = 8;
  absl::MutexLock lock(&mutex_);
  free_.push_back({std::move(data), size});
  if (free_.size() > kMaxFree) {
    free_.erase(std::min_element(free_.begin(), free_.end(),
                                 [](const Block& a, const Block& b) { return a.size < b.size; }));
  }
}

}  // namespace kvblend::kernels
