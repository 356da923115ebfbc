// Where the bytes of chunk KV come from: the seam for page-locked memory (backend_memory.h) and for tests in
// which memory runs out.
#pragma once

#include <cstdint>

namespace kvblend::store {

/// Thread-safe. Must outlive everything allocated from it.
class HostMemory {
 public:
  static constexpr int64_t kAlignment = 4096;  // bytes; what reading past the page cache asks of buffers

  virtual ~HostMemory() = default;
  /// Uninitialised memory at a multiple of kAlignment, or nullptr when there is none. REQUIRES: bytes > 0
  virtual void* Allocate(int64_t bytes) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
};

/// The process's heap. Lives until the process ends.
HostMemory& Heap();

}  // namespace kvblend::store
