#include "engine/model/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>

#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr uintptr_t kNeighbourhood = uintptr_t{2} << 20;

// Where files are mapped. ReleaseMappedPages touches nothing else: other memory would lose what it holds.
struct Mappings {
  std::mutex mutex;
  std::map<uintptr_t, size_t> size_at;
};

Mappings& AllMappings() {
  static auto* const mappings = new Mappings();
  return *mappings;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  // O_NONBLOCK: not to wait for a pipe's writer. For regular files it changes nothing.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, Concat("cannot open model file ", path));
  struct stat info = {};
  absl::Status status;
  void* address = nullptr;
  if (fstat(descriptor, &info) != 0) {
    status = absl::ErrnoToStatus(errno, Concat("cannot stat model file ", path));
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(Concat(path, ": not a regular file"));
  } else if (info.st_size == 0) {
    status = absl::DataLossError(Concat(path, ": truncated: the file is empty"));
  } else {
    address = mmap(nullptr, info.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) status = absl::ErrnoToStatus(errno, Concat("cannot map model file ", path));
  }
  close(descriptor);
  if (!status.ok()) return status;
  return std::unique_ptr<MappedFile>(new MappedFile(address, info.st_size));
}

MappedFile::MappedFile(void* address, size_t size) : address_(address), size_(size) {
  Mappings& all = AllMappings();
  const std::lock_guard lock(all.mutex);
  all.size_at.emplace(reinterpret_cast<uintptr_t>(address), size);
}

MappedFile::~MappedFile() {
  Mappings& all = AllMappings();
  const std::lock_guard lock(all.mutex);
  all.size_at.erase(reinterpret_cast<uintptr_t>(address_));
  munmap(address_, size_);
}

void ReleaseMappedPages(absl::Span<const std::byte> bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()), end = begin + bytes.size();
  if (bytes.empty()) return;
  Mappings& all = AllMappings();
  const std::lock_guard lock(all.mutex);  // the mapping stays meanwhile
  const auto behind = all.size_at.upper_bound(begin);
  if (behind == all.size_at.begin()) return;
  const auto mapping = std::prev(behind);
  const uintptr_t mapping_end = mapping->first + mapping->second;
  if (end > mapping_end) return;
  // The neighbourhood too: the kernel maps up to a huge page at once. Whoever needs it gets it again. A
  // mapping begins at a page.
  const uintptr_t first = std::max(mapping->first, begin / kNeighbourhood * kNeighbourhood),
                  last = std::min(mapping_end, (end + kNeighbourhood - 1) / kNeighbourhood * kNeighbourhood);
  // Advice: where it is not taken, the memory stays in use and nothing else is different.
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address of a page, which is no object of ours
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace kvblend::model
