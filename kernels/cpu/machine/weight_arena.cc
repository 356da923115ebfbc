#include "kernels/cpu/machine/weight_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSmallestSlab = 8 * kHugePage;
constexpr int64_t kLargestSlab = 512 * kHugePage;

WeightBytes AllocateSlab(int64_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kHugePage}, std::nothrow));
  if (data == nullptr) return nullptr;
  madvise(data, bytes, MADV_HUGEPAGE);  // a hint; failure is harmless
  return {data, [](std::byte* slab) { ::operator delete (slab, std::align_val_t{kHugePage}); }};
}

// Bytes [begin, end) of a slab, which nobody uses.
void GiveBack(const WeightBytes& slab, int64_t begin, int64_t end) {
  begin = RoundUp(begin, sysconf(_SC_PAGESIZE));
  if (begin < end) madvise(slab.get() + begin, end - begin, MADV_DONTNEED);
}

}  // namespace

WeightBytes WeightArena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, 64);
  absl::MutexLock lock(&mutex_);
  if (free_end_ - free_begin_ < bytes) {
    // What is left of the old slab is given up. A huge page that is used in part loses the rest of its memory. Slabs grow
    // with what there is, so that few have an end.
    GiveBack(slab_, free_begin_, free_end_);
    const int64_t slab_bytes =
        std::max(RoundUp(bytes, kHugePage), std::clamp(allocated_, kSmallestSlab, kLargestSlab));
    WeightBytes slab = AllocateSlab(slab_bytes);
    if (slab == nullptr) return nullptr;
    slab_ = std::move(slab);
    allocated_ += slab_bytes;
    free_begin_ = 0;
    free_end_ = slab_bytes;
  }
  WeightBytes part(slab_, slab_.get() + free_begin_);
  free_begin_ += bytes;
  return part;
}

}  // namespace kvblend::kernels
