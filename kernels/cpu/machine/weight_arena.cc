#include "kernels/cpu/machine/weight_arena.h"

#include <sys/mman.h>

#include <new>

#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSlab = 8 * kHugePage;

WeightBytes AllocateSlab(int64_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kHugePage}, std::nothrow));
  if (data == nullptr) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);  // a hint; failure is harmless
  return {data, [](std::byte* slab) { ::operator delete (slab, std::align_val_t{kHugePage}); }};
}

}  // namespace

WeightBytes WeightArena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, 64);
  absl::MutexLock lock(&mutex_);
  if (free_end_ - free_begin_ < bytes) {
    // What is left of the old slab is given up: at most a page of it was ever touched.
    const int64_t slab_bytes = bytes > kSlab / 4 ? RoundUp(bytes, kHugePage) : kSlab;
    WeightBytes slab = AllocateSlab(slab_bytes);
    if (slab == nullptr) return nullptr;
    slab_ = std::move(slab);
    free_begin_ = 0;
    free_end_ = slab_bytes;
  }
  WeightBytes part(slab_, slab_.get() + free_begin_);
  free_begin_ += bytes;
  return part;
}

}  // namespace kvblend::kernels
