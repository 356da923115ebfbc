// The store's memory from a backend: page-locked where a device copies from it.
#pragma once

#include <cstdint>

#include "engine/store/format/host_memory.h"
#include "kernels/backend.h"

namespace kvblend::store {

/// The backend must outlive it.
class BackendMemory final : public HostMemory {
 public:
  explicit BackendMemory(kernels::Backend& backend) : backend_(backend) {}
  void* Allocate(int64_t bytes) override { return backend_.AllocateHost(bytes); }
  void Free(void* data, int64_t bytes) override { backend_.FreeHost(data, bytes); }

 private:
  kernels::Backend& backend_;
};

}  // namespace kvblend::store
