#include "server/files/open_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace kvblend::server {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(20);

const char* KindOf(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

std::string Reason(int error) { return error == ELOOP ? "its links lead in a circle" : std::strerror(error); }

template <typename... Parts>
absl::Status CannotRead(const std::string& path, const Parts&... why) {
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", why...));
}

template <typename... Parts>
absl::Status CannotWrite(const std::string& path, const Parts&... why) {
  return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", why...));
}

const char* NamesOf(Allowed allowed) {
  return allowed == Allowed::kFile ? "a regular file" : "a regular file, or a pipe that is written to";
}

/// What open(2) has said of a path with ENXIO: sockets can't be opened.
bool IsSocket(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

void MakeBlocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

/// Whether somebody has the pipe, which seems to be empty, open for writing. Takes nothing out of it.
bool HasWriter(int fd) {
  int copy[2];
  if (pipe2(copy, O_CLOEXEC) != 0) return true;
  const Descriptor reader(copy[0]), writer(copy[1]);
  return tee(fd, writer.get(), 1, SPLICE_F_NONBLOCK) != 0;  // 0: it is at its end
}

/// Returns when there is something to read in the pipe, or its writers have gone; an error when it has had
/// none for so long.
absl::Status AwaitWriter(int fd, const std::string& path, absl::Duration patience) {
  for (;;) {
    pollfd polled = {.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(patience)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return CannotRead(path, Reason(errno));
    if (ready == 0 && !HasWriter(fd)) {
      return CannotRead(path,
                        "it is a pipe that nobody writes to; allowed: ", NamesOf(Allowed::kFileOrStream));
    }
  }
}

}  // namespace

absl::StatusOr<Descriptor> OpenToRead(const std::string& path, Allowed allowed, absl::Duration patience) {
  const auto refused = [&](const std::string& why) {
    return CannotRead(path, why, "; allowed: ", NamesOf(allowed));
  };
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) {
    const int error = errno;
    if (error == ENXIO && IsSocket(path)) return refused("it is a socket");
    const absl::Status status = refused(Reason(error));
    return error == ENOENT ? absl::NotFoundError(status.message()) : status;
  }
  struct stat found;
  if (fstat(file.get(), &found) != 0) return refused(Reason(errno));
  const bool is_stream = S_ISFIFO(found.st_mode) || S_ISCHR(found.st_mode) || S_ISBLK(found.st_mode);
  if (!S_ISREG(found.st_mode) && !(is_stream && allowed == Allowed::kFileOrStream)) {
    return refused(absl::StrCat("it is ", KindOf(found.st_mode)));
  }
  if (S_ISFIFO(found.st_mode)) KVBLEND_RETURN_IF_ERROR(AwaitWriter(file.get(), path, patience));
  MakeBlocking(file.get());  // reading a pipe without writers does not wait
  return file;
}

absl::StatusOr<std::string> ReadRest(const Descriptor& file, const std::string& path, int64_t max_bytes) {
  std::string bytes, block(size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t count = read(file.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return CannotRead(path, Reason(errno));
    if (count == 0) return bytes;
    bytes.append(block, 0, static_cast<size_t>(count));
    if (static_cast<int64_t>(bytes.size()) > max_bytes) {
      return CannotRead(path, "it has more than ", max_bytes, " bytes");
    }
  }
}

absl::StatusOr<std::string> ReadNamed(const std::string& path, Allowed allowed, int64_t max_bytes,
                                      absl::Duration patience) {
  KVBLEND_ASSIGN_OR_RETURN(const Descriptor file, OpenToRead(path, allowed, patience));
  struct stat found;
  const bool is_file = fstat(file.get(), &found) == 0 && S_ISREG(found.st_mode);
  return ReadRest(file, path, is_file ? max_bytes : std::min(max_bytes, kMaxStreamBytes));
}

absl::StatusOr<std::string> ReadFirstLine(const std::string& path, size_t max_bytes, const char* what,
                                          absl::Duration patience) {
  KVBLEND_ASSIGN_OR_RETURN(const Descriptor file, OpenToRead(path, Allowed::kFileOrStream, patience));
  std::string line;
  size_t end = std::string::npos;
  while (end == std::string::npos && line.size() <= max_bytes + 1) {
    char block[512];
    const ssize_t count = read(file.get(), block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return CannotRead(path, Reason(errno));
    if (count == 0) break;
    line.append(block, static_cast<size_t>(count));
    end = line.find('\n');
  }
  if (end != std::string::npos) line.resize(end);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  if (line.size() <= max_bytes) return line;
  return CannotRead(path, "its first line has more than ", max_bytes, " bytes; allowed: ", what);
}

absl::Status WriteError(const std::string& path, int error) {
  const bool is_disk = error == ENOSPC || error == EDQUOT || error == EIO;
  const absl::Status status = CannotWrite(path, Reason(error));
  return is_disk ? absl::FailedPreconditionError(status.message()) : status;
}

absl::StatusOr<Descriptor> OpenToWrite(const std::string& path, absl::Duration patience) {
  const absl::Time end = SteadyNow() + patience;
  for (;;) {
    Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666));
    if (file.get() < 0) {
      const int error = errno;
      if (error != ENXIO) return WriteError(path, error);
      if (IsSocket(path)) return CannotWrite(path, "it is a socket; allowed: a file, or a pipe that is read");
      if (SteadyNow() < end) {
        absl::SleepFor(kLookEvery);
        continue;
      }
      return CannotWrite(path, "it is a pipe that nobody reads; allowed: a file, or a pipe that is read");
    }
    struct stat found;
    if (fstat(file.get(), &found) != 0 || (S_ISREG(found.st_mode) && ftruncate(file.get(), 0) != 0)) {
      return WriteError(path, errno);
    }
    MakeBlocking(file.get());
    return file;
  }
}

absl::Status WriteAll(const Descriptor& file, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return WriteError(path, errno);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status CheckReplaceable(std::string_view flag, const std::string& path) {
  struct stat found;
  const bool is_there = stat(path.c_str(), &found) == 0;
  if (is_there ? S_ISREG(found.st_mode) : errno != ELOOP) return absl::OkStatus();
  const std::string what = is_there ? absl::StrCat("is ", KindOf(found.st_mode)) : "is a link in a circle";
  return absl::InvalidArgumentError(absl::StrCat(absl::string_view(flag.data(), flag.size()), " is ", path,
                                                 ", which ", what,
                                                 "; allowed: a regular file, or a new name"));
}

bool IsPipeOrDevice(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode);
}

}  // namespace kvblend::server
