#include "kernels/cpu/machine/weight_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <new>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "kernels/cpu/machine/tiles.h"

namespace kvblend::kernels {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSmallestSlab = 8 * kHugePage;
constexpr int64_t kLargestSlab = 512 * kHugePage;

absl::StatusOr<WeightBytes> AllocateSlab(int64_t bytes) {
  auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kHugePage}, std::nothrow));
  if (data == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of memory for weights"));
  madvise(data, bytes, MADV_HUGEPAGE);  // a hint; failure is harmless
  return WeightBytes(data, [](std::byte* slab) { ::operator delete (slab, std::align_val_t{kHugePage}); });
}

absl::StatusOr<WeightBytes> MapSlab(const std::string& folder, int64_t bytes) {
  const auto failed = [&](int error, absl::string_view what) {
    const std::string text = absl::StrCat("folder for weights '", folder, "': ", what);
    return error == ENOSPC || error == EDQUOT || error == EFBIG
               ? absl::ResourceExhaustedError(absl::StrCat(text, ": no room for ", bytes, " bytes"))
               : absl::ErrnoToStatus(error, text);
  };
  std::string path = folder + "/kvblend-weights-XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0) return failed(errno, "no file can be made there");
  const absl::Cleanup close_file = [file] { close(file); };
  unlink(path.c_str());  // gone with the mapping, however the process ends
  // All of it now: a disk that is full later would end the process.
  if (const int error = posix_fallocate(file, 0, bytes); error != 0) return failed(error, "a file there");
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return failed(errno, "its file can't be mapped");
  return WeightBytes(static_cast<std::byte*>(data), [bytes](std::byte* slab) { munmap(slab, bytes); });
}

// Returns the memory of a slab's bytes [begin, end), which nobody uses. A file keeps its room on disk.
void GiveBack(const WeightBytes& slab, int64_t begin, int64_t end) {
  begin = RoundUp(begin, sysconf(_SC_PAGESIZE));
  if (begin < end) madvise(slab.get() + begin, end - begin, MADV_DONTNEED);
}

}  // namespace

absl::StatusOr<WeightBytes> WeightArena::Allocate(int64_t bytes) {
  bytes = RoundUp(bytes, 64);
  absl::MutexLock lock(&mutex_);
  if (free_end_ - free_begin_ < bytes) {
    // The rest of the old slab is returned, also where it is a part of a huge page. Slabs grow with what is
    // allocated, so that few rests arise.
    GiveBack(slab_, free_begin_, free_end_);
    const int64_t slab_bytes =
        std::max(RoundUp(bytes, kHugePage), std::clamp(allocated_, kSmallestSlab, kLargestSlab));
    KVBLEND_ASSIGN_OR_RETURN(slab_,
                             folder_.empty() ? AllocateSlab(slab_bytes) : MapSlab(folder_, slab_bytes));
    allocated_ += slab_bytes;
    free_begin_ = 0;
    free_end_ = slab_bytes;
  }
  WeightBytes part(slab_, slab_.get() + free_begin_);
  free_begin_ += bytes;
  return part;
}

}  // namespace kvblend::kernels
