#include "kernels/cpu/huge_bytes.h"

#include <sys/mman.h>

#include <algorithm>

#include "kernels/cpu/tiles.h"

namespace kvblend::kernels {

HugeBytes AllocateHuge(int64_t bytes) {
  const size_t size = RoundUp(std::max<int64_t>(bytes, 1), 4096);
  auto* data = static_cast<std::byte*>(::operator new (size, std::align_val_t{kHugePage}, std::nothrow));
  if (data != nullptr && size >= kHugePage)
    madvise(data, size, MADV_HUGEPAGE);  // a hint; failure is harmless
  return HugeBytes(data);
}

}  // namespace kvblend::kernels
