#include "engine/kv/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
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
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
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

constexpr int kMostLinks = 40;  // as Linux follows

/// What `path` names, behind all links; it need not be there.
std::string BehindLinks(std::string path) {
  for (int i = 0; i < kMostLinks; ++i) {
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(path, error);
    if (error) break;
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  return path;
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
  const std::string part = PartOf(BehindLinks(path));
  KVBLEND_ASSIGN_OR_RETURN(const int file, CreateAlone(part));
  unlink(part.c_str());  // while it is locked: nobody else may be writing it
  close(file);
  return absl::OkStatus();
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0) return SyncFolderOf(path);
  return errno == ENOENT ? absl::OkStatus() : SystemError("cannot remove", path);
}

void RemoveUnfinished(const std::string& path) { unlink(PartOf(BehindLinks(path)).c_str()); }

FileReplacement::FileReplacement(std::string path, std::string part, int file)
    : path_(std::move(path)), part_(std::move(part)), file_(file) {}

FileReplacement::FileReplacement(FileReplacement&& other) noexcept
    : path_(other.path_),
      part_(other.part_),
      file_(std::exchange(other.file_, -1)),
      unfinished_(std::exchange(other.unfinished_, false)) {}

FileReplacement::~FileReplacement() {
  if (unfinished_) unlink(part_.c_str());
  if (file_ >= 0) close(file_);  // which unlocks it: by then it has its final name, or none
}

absl::StatusOr<FileReplacement> FileReplacement::Begin(const std::string& path) {
  struct stat old;
  const bool is_there = stat(path.c_str(), &old) == 0;
  if (is_there ? !S_ISREG(old.st_mode) : errno == ELOOP) return NotRegular(path);
  std::string target = BehindLinks(path);
  std::string part = PartOf(target);
  KVBLEND_ASSIGN_OR_RETURN(const int file, CreateAlone(part));
  FileReplacement replacement(std::move(target), std::move(part), file);
  if (is_there) {
    // Only root may give files away; who may not leaves a file of his own.
    [[maybe_unused]] const int ignored = fchown(file, old.st_uid, old.st_gid);
    if (fchmod(file, old.st_mode & 07777) != 0) return SystemError("cannot write", replacement.part_);
  }
  return replacement;
}

absl::Status FileReplacement::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return SystemError("cannot write", part_);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status FileReplacement::Finish() {
  KVBLEND_RETURN_IF_ERROR(Sync(file_, part_));
  if (rename(part_.c_str(), path_.c_str()) != 0) return SystemError("cannot rename to", path_);
  unfinished_ = false;
  return SyncFolderOf(path_);
}

absl::Status ReplaceFile(const std::string& path, std::string_view bytes) {
  KVBLEND_ASSIGN_OR_RETURN(FileReplacement replacement, FileReplacement::Begin(path));
  KVBLEND_RETURN_IF_ERROR(replacement.Write(bytes));
  return replacement.Finish();
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
