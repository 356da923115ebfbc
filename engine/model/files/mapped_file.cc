#include "engine/model/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

/// Which addresses are mapped files: DropPages gets bytes from whoever read them, and what madvise does to other memory is
/// to empty it.
struct Mappings {
  absl::Mutex mutex;
  std::map<uintptr_t, uintptr_t> end_of ABSL_GUARDED_BY(mutex);  // by where they begin
};
Mappings& AllMappings() {
  static auto* mappings = new Mappings();
  return *mappings;
}

}  // namespace

MappedFile::MappedFile(void* address, size_t size) : address_(address), size_(size) {
  Mappings& mappings = AllMappings();
  const absl::MutexLock lock(&mappings.mutex);
  const auto begin = reinterpret_cast<uintptr_t>(address);
  mappings.end_of[begin] = begin + size;
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
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

MappedFile::~MappedFile() {
  Mappings& mappings = AllMappings();
  const absl::MutexLock lock(&mappings.mutex);
  mappings.end_of.erase(reinterpret_cast<uintptr_t>(address_));
  munmap(address_, size_);
}

void DropPages(absl::Span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t begin = (first + page - 1) / page * page, end = (first + bytes.size()) / page * page;
  if (begin >= end) return;
  Mappings& mappings = AllMappings();
  const absl::MutexLock lock(&mappings.mutex);  // so that the file stays mapped meanwhile
  auto mapping = mappings.end_of.upper_bound(first);
  if (mapping == mappings.end_of.begin() || (--mapping)->second < first + bytes.size()) return;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);  // a hint; failure is harmless
}

}  // namespace kvblend::model
