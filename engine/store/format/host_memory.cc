#include "engine/store/format/host_memory.h"

#include <cstddef>
#include <new>

namespace kvblend::store {
namespace {

class HeapMemory final : public HostMemory {
 public:
  void* Allocate(int64_t bytes) override {
    return ::operator new (static_cast<size_t>(bytes), std::align_val_t{kAlignment}, std::nothrow);
  }
  void Free(void* data, int64_t) override { ::operator delete (data, std::align_val_t{kAlignment}); }
};

}  // namespace

HostMemory& Heap() {
  static auto& heap = *new HeapMemory;  // never destroyed: chunks may be freed while the process ends
  return heap;
}

}  // namespace kvblend::store
