#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/disk/file_system.h"

namespace kvblend::store {
namespace {

absl::Status SystemError(int error, const std::string& operation, const std::string& path) {
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      code = absl::StatusCode::kResourceExhausted;
      break;
    case EIO:
      code = absl::StatusCode::kInternal;
      break;
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      code = absl::StatusCode::kUnavailable;
      break;
    case EROFS:
    case ENOTDIR:
    case EISDIR:
      code = absl::StatusCode::kFailedPrecondition;
      break;
    default:
      break;
  }
  return absl::Status(
      code, absl::StrCat(path, ": ", operation, " failed: ", std::generic_category().message(error)));
}

/// Repeats a system call that a signal interrupted.
template <typename Call>
auto Retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// The beginning of what somebody left in a lock's file for people to read; empty if it cannot be read.
std::string LockText(int fd) {
  char text[256];
  const ssize_t bytes = Retry([&] { return pread(fd, text, sizeof(text), 0); });
  return {text, static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
}

/// A file that only happens to have a lock's name stays as it is. A lock's begins with its owners' first
/// word, unless a full disk or a power failure cut it short.
absl::Status CheckLockText(int fd, const std::string& path, std::string_view owner) {
  const std::string word(owner.substr(0, owner.find(' '))), text = LockText(fd);
  if (text.empty() || text.front() == '\0' || word.starts_with(text) || text.starts_with(word)) {
    return absl::OkStatus();
  }
  const std::string beginning = text.substr(0, std::min<size_t>(text.find('\n'), 40));
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": is no lock file: it begins with '", absl::CHexEscape(beginning),
                   "', and a lock's with '", word, "'; choose another folder, or move this file away"));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

class PosixFile final : public File {
 public:
  PosixFile(Descriptor fd, std::string path, bool direct)
      : fd_(std::move(fd)), path_(std::move(path)), direct_(direct) {}

  absl::StatusOr<int64_t> ReadAt(int64_t offset, absl::Span<std::byte> out) override {
    const auto read = [&] { return Retry([&] { return pread(fd_.get(), out.data(), out.size(), offset); }); };
    ssize_t bytes = read();
    if (bytes < 0 && errno == EINVAL && (fcntl(fd_.get(), F_GETFL) & O_DIRECT) != 0) {
      // Some file systems take the flag and refuse the read.
      fcntl(fd_.get(), F_SETFL, 0);
      bytes = read();
    }
    if (bytes < 0) return SystemError(errno, "read", path_);
    return bytes;
  }
  absl::StatusOr<int64_t> WriteAt(int64_t offset, absl::Span<const std::byte> bytes) override {
    const ssize_t written = Retry([&] { return pwrite(fd_.get(), bytes.data(), bytes.size(), offset); });
    if (written < 0) return SystemError(errno, "write", path_);
    return written;
  }
  absl::Status Sync() override {
    return Retry([&] { return fsync(fd_.get()); }) < 0 ? SystemError(errno, "fsync", path_)
                                                       : absl::OkStatus();
  }
  absl::StatusOr<int64_t> Size() override {
    struct stat info;
    if (fstat(fd_.get(), &info) < 0) return SystemError(errno, "stat", path_);
    return info.st_size;
  }
  bool direct() const override { return direct_; }
  int descriptor() const override { return fd_.get(); }
  const std::string& path() const override { return path_; }

 private:
  const Descriptor fd_;
  const std::string path_;
  const bool direct_;
};

class PosixLock final : public FileLock {
 public:
  PosixLock(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  bool InPlace() const override {
    struct stat own, named;
    return fstat(fd_.get(), &own) == 0 && lstat(path_.c_str(), &named) == 0 && own.st_dev == named.st_dev &&
           own.st_ino == named.st_ino;
  }

 private:
  const Descriptor fd_;  // closing it gives the lock back
  const std::string path_;
};

class Posix final : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    // O_NOFOLLOW and O_NONBLOCK: a link or a pipe under one of our names is not ours.
    const int flags =
        mode == OpenMode::kCreate ? O_WRONLY | O_CREAT | O_EXCL : O_RDONLY | O_NOFOLLOW | O_NONBLOCK;
    const auto open_with = [&](int more) {
      return Descriptor(Retry([&] { return open(path.c_str(), flags | more | O_CLOEXEC, 0640); }));
    };
    if (mode == OpenMode::kReadDirect) {
      Descriptor fd = open_with(O_DIRECT);
      if (fd.get() >= 0) return std::make_unique<PosixFile>(std::move(fd), path, true);
      if (errno != EINVAL) return SystemError(errno, "open", path);
    }
    Descriptor fd = open_with(0);
    if (fd.get() < 0) return SystemError(errno, mode == OpenMode::kCreate ? "create" : "open", path);
    return std::make_unique<PosixFile>(std::move(fd), path, false);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return SystemError(errno, absl::StrCat("rename to ", to), from);
  }
  absl::Status Unlink(const std::string& path) override {
    return unlink(path.c_str()) == 0 ? absl::OkStatus() : SystemError(errno, "unlink", path);
  }
  absl::Status MakeFolder(const std::string& path) override {
    return mkdir(path.c_str(), 0750) == 0 ? absl::OkStatus() : SystemError(errno, "mkdir", path);
  }
  absl::Status SyncFolder(const std::string& path) override {
    const Descriptor fd(Retry([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (fd.get() < 0) return SystemError(errno, "open", path);
    return Retry([&] { return fsync(fd.get()); }) < 0 ? SystemError(errno, "fsync", path) : absl::OkStatus();
  }
  absl::StatusOr<std::vector<FolderItem>> List(const std::string& path) override {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
    if (folder == nullptr) return SystemError(errno, "open", path);
    std::vector<FolderItem> items;
    while (true) {
      errno = 0;
      const dirent* item = readdir(folder.get());
      if (item == nullptr) break;
      const std::string_view name = item->d_name;
      if (name == "." || name == "..") continue;
      unsigned char type = item->d_type;
      if (type == DT_UNKNOWN) {  // not every file system tells
        struct stat info;
        if (fstatat(dirfd(folder.get()), item->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
          type = S_ISDIR(info.st_mode) ? DT_DIR : S_ISREG(info.st_mode) ? DT_REG : DT_LNK;
        }
      }
      items.push_back({.name = std::string(name), .is_folder = type == DT_DIR, .is_file = type == DT_REG});
    }
    if (errno != 0) return SystemError(errno, "list", path);
    return items;
  }
  absl::StatusOr<Space> SpaceOf(const std::string& path) override {
    struct statvfs info;
    if (Retry([&] { return statvfs(path.c_str(), &info); }) < 0) return SystemError(errno, "statvfs", path);
    const auto unit = static_cast<int64_t>(info.f_frsize);
    return Space{.total_bytes = static_cast<int64_t>(info.f_blocks) * unit,
                 .available_bytes = static_cast<int64_t>(info.f_bavail) * unit};
  }
  absl::Status CheckWritable(const std::string& path) override {
    return faccessat(AT_FDCWD, path.c_str(), W_OK | X_OK, AT_EACCESS) < 0
               ? SystemError(errno, "access for writing", path)
               : absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, std::string_view owner) override {
    Descriptor fd(Retry([&] { return open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0640); }));
    if (fd.get() < 0) return SystemError(errno, "open", path);
    if (Retry([&] { return flock(fd.get(), LOCK_EX | LOCK_NB); }) < 0) {
      if (errno != EWOULDBLOCK) return SystemError(errno, "lock", path);
      const std::string holder = LockText(fd.get());
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": is locked", holder.empty() ? "" : " by ", holder, "; one server per folder"));
    }
    KVBLEND_RETURN_IF_ERROR(CheckLockText(fd.get(), path, owner));
    // The text is for people only, so it may be missing on a full disk.
    if (ftruncate(fd.get(), 0) == 0) {
      [[maybe_unused]] const ssize_t written =
          Retry([&] { return pwrite(fd.get(), owner.data(), owner.size(), 0); });
    }
    return std::make_unique<PosixLock>(std::move(fd), path);
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static auto& posix = *new Posix;  // never destroyed: files may be closed while the process ends
  return posix;
}

}  // namespace kvblend::store
