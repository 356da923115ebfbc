// Memory for weights. They are streamed: with 4 KiB pages the processor would miss its TLB at every other
// block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace kvblend::kernels {

inline constexpr size_t kHugePage = size_t{2} << 20;

struct HugeDelete {
  void operator()(std::byte* data) const { ::operator delete (data, std::align_val_t{kHugePage}); }
};
using HugeBytes = std::unique_ptr<std::byte[], HugeDelete>;

/// At least `bytes`, aligned to kHugePage and uninitialised; null when there is no memory.
HugeBytes AllocateHuge(int64_t bytes);

}  // namespace kvblend::kernels
