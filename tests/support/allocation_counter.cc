// In a file of its own: inlined next to what they replace, compilers take these for mismatched pairs.
#include "tests/support/allocation_counter.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0};

void* Counted(size_t bytes, size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    data = std::malloc(bytes == 0 ? 1 : bytes);
  } else if (posix_memalign(&data, alignment, bytes) != 0) {
    data = nullptr;
  }
  return data;
}

void* CountedOrThrow(size_t bytes, size_t alignment) {
  void* data = Counted(bytes, alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(size_t bytes) { return CountedOrThrow(bytes, 1); }
void* operator new[](size_t bytes) { return CountedOrThrow(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return CountedOrThrow(bytes, static_cast<size_t>(alignment));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept { return Counted(bytes, 1); }
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept { return Counted(bytes, 1); }
void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Counted(bytes, static_cast<size_t>(alignment));
}
void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return Counted(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, size_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, const std::nothrow_t&) noexcept { std::free(data); }
void operator delete[](void* data, const std::nothrow_t&) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t, const std::nothrow_t&) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t, const std::nothrow_t&) noexcept { std::free(data); }

namespace kvblend::test_support {

int64_t NumAllocations() { return allocations.load(); }

}  // namespace kvblend::test_support
