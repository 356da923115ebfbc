#include "engine/model/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {

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

MappedFile::~MappedFile() { munmap(address_, size_); }

}  // namespace kvblend::model
