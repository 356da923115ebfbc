#include "engine/kv/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::kv {
namespace {

absl::Status SystemError(std::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(std::string(what), " ", path));
}

absl::Status Sync(int file, const std::string& path) {
  while (fsync(file) != 0) {
    if (errno != EINTR) return SystemError("cannot write", path);
  }
  return absl::OkStatus();
}

absl::Status NotRegular(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file; allowed: one, or a new name"));
}

/// Opens `path`, empty and locked until it is closed. A process that died may have left it behind.
absl::StatusOr<int> CreateAlone(const std::string& path) {
  while (true) {
    // O_NONBLOCK: not to wait for a pipe's reader. O_NOFOLLOW: not to empty what a link points to.
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0644);
    if (file < 0)
      return errno == ENXIO || errno == ELOOP ? NotRegular(path) : SystemError("cannot create", path);
    absl::Cleanup close_file = [file] { close(file); };
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        return absl::UnavailableError(absl::StrCat("another process is writing ", path));
      }
      // Some network file systems know no locks; a file there is written all the same.
      if (errno != ENOLCK && errno != EOPNOTSUPP) return SystemError("cannot lock", path);
    }
    // Whoever had the lock before may have given the file its final name since it was opened here.
    struct stat opened, named;
    if (fstat(file, &opened) != 0) return SystemError("cannot look at", path);
    if (!S_ISREG(opened.st_mode)) return NotRegular(path);
    if (stat(path.c_str(), &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
      continue;
    }
    if (ftruncate(file, 0) != 0) return SystemError("cannot write", path);
    std::move(close_file).Cancel();
    return file;
  }
}

absl::Status WriteAndSync(int file, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write", path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return Sync(file, path);
}

std::string PartOf(const std::string& path) { return absl::StrCat(path, ".part"); }

/// The new name outlives the machine once its folder is on the disk.
absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return SystemError("cannot open", folder);
  const absl::Cleanup close_file = [file] { close(file); };
  return Sync(file, folder);
}

}  // namespace

absl::Status CheckReplaceable(const std::string& path) {
  struct stat named;
  const bool is_there = stat(path.c_str(), &named) == 0;
  if (is_there ? !S_ISREG(named.st_mode) : errno == ELOOP) return NotRegular(path);
  const std::string part = PartOf(path);
  KVBLEND_ASSIGN_OR_RETURN(const int file, CreateAlone(part));
  unlink(part.c_str());  // while it is locked: nobody else may be writing it
  close(file);
  return absl::OkStatus();
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0) return SyncFolderOf(path);
  return errno == ENOENT ? absl::OkStatus() : SystemError("cannot remove", path);
}

void RemoveUnfinished(const std::string& path) { unlink(PartOf(path).c_str()); }

absl::Status ReplaceFile(const std::string& path, std::string_view bytes) {
  const std::string part = PartOf(path);
  KVBLEND_ASSIGN_OR_RETURN(const int file, CreateAlone(part));
  const absl::Cleanup close_file = [file] { close(file); };  // locked until the file has its final name
  absl::Status written = WriteAndSync(file, part, bytes);
  if (written.ok() && rename(part.c_str(), path.c_str()) != 0) {
    written = SystemError("cannot rename to", path);
  }
  if (!written.ok()) {
    unlink(part.c_str());
    return written;
  }
  return SyncFolderOf(path);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, std::string_view magic) {
  // O_NONBLOCK: not to wait for a pipe's writer.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  // ENXIO: a socket. ELOOP: links that lead in a circle.
  if (file < 0) return errno == ENXIO || errno == ELOOP ? NotRegular(path) : SystemError("cannot open", path);
  const absl::Cleanup close_file = [file] { close(file); };
  struct stat opened;
  if (fstat(file, &opened) != 0) return SystemError("cannot look at", path);
  if (!S_ISREG(opened.st_mode)) return NotRegular(path);
  std::string bytes, block(size_t{1} << 16, '\0');
  while (true) {
    const ssize_t count = read(file, block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::DataLossError(absl::StrCat("cannot read ", path));
    if (count == 0) return bytes;
    bytes.append(block, 0, static_cast<size_t>(count));
    if (std::string_view(bytes).substr(0, magic.size()) != magic) return bytes;
  }
}

}  // namespace kvblend::kv
