// Working memory that operations reuse instead of allocating anew.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <new>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace kvblend::kernels {

/// Each use has its own slot, so that they never share memory within a thread.
enum class ScratchSlot : uint8_t {
  kOneDnn,
  kQuery,
  kScores,
  kProbabilities,
  kOutput,
  kRow,
  kDecoded,
  kCorrected,
  kCodes,
  kWeights,
  kHeads,
  kSpread,
  kCount
};

/// At least `bytes` of memory of the calling thread, aligned to 64, kept until the thread ends. Contents are
/// undefined; valid until the next call with the same slot. Throws std::bad_alloc like any container.
void* ThreadScratch(ScratchSlot slot, size_t bytes);

template <typename T>
T* ThreadScratch(ScratchSlot slot, size_t count) {
  return static_cast<T*>(ThreadScratch(slot, count * sizeof(T)));
}

struct AlignedDelete {
  void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{64}); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;

/// Blocks shared by the threads of one operation, kept for the next one. Thread-safe.
class ScratchPool {
 public:
  /// A block on loan; returned on destruction. Must not outlive the pool.
  class Lease {
   public:
    Lease() = default;
    Lease(ScratchPool* pool, AlignedBytes data, size_t size)
        : pool_(pool), data_(std::move(data)), size_(size) {}
    Lease(Lease&&) = default;
    Lease& operator=(Lease&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(size_, other.size_);
      return *this;
    }
    ~Lease() {
      if (data_ != nullptr) pool_->Return(std::move(data_), size_);
    }
    std::byte* data() const { return data_.get(); }
    explicit operator bool() const { return data_ != nullptr; }

   private:
    ScratchPool* pool_ = nullptr;
    AlignedBytes data_;
    size_t size_ = 0;
  };

  /// Uninitialised; false when there is no memory.
  Lease Borrow(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Block {
    AlignedBytes data;
    size_t size;
  };
  void Return(AlignedBytes data, size_t size) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::vector<Block> free_ ABSL_GUARDED_BY(mutex_);
};

/// Memory for an operation's lists of tasks, in std::pmr containers: on loan as well. Lists that outgrow it
/// get more from the heap.
class ListMemory {
 public:
  explicit ListMemory(ScratchPool& pool)
      : lease_(pool.Borrow(kBytes)), resource_(lease_.data(), lease_ ? kBytes : 0) {}
  std::pmr::memory_resource* resource() { return &resource_; }

 private:
  static constexpr size_t kBytes = 256 << 10;

  const ScratchPool::Lease lease_;
  std::pmr::monotonic_buffer_resource resource_;
};

}  // namespace kvblend::kernels
