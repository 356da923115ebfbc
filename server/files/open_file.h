// Opening what somebody has named, whatever it turns out to be: nothing here waits for ever, and an error
// names the path, what is there, and what is allowed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/files/descriptor.h"

namespace kvblend::server {

/// How long a pipe's other end is waited for. Whoever has opened it may take its time.
inline constexpr absl::Duration kPipePatience = absl::Seconds(3);

enum class Allowed {
  kFile,          // regular files only: what is read again when it changes, or found in a folder
  kFileOrStream,  // pipes and devices as well: what a person has named, such as <(command) or /dev/stdin
};

/// Opens a file that is there, to be read. What it is is asked of the open file, so that nobody can put
/// another in its place meanwhile. A pipe is opened when there is something in it; one that nobody has opened
/// for writing within `patience` is refused. kNotFound: there is none; otherwise kInvalidArgument. Messages
/// end with what is allowed.
absl::StatusOr<Descriptor> OpenToRead(const std::string& path, Allowed allowed,
                                      absl::Duration patience = kPipePatience);

/// What is left in `file`, which `path` names. kInvalidArgument: it can't be read, or there is more than
/// that.
absl::StatusOr<std::string> ReadRest(const Descriptor& file, const std::string& path,
                                     int64_t max_bytes = std::numeric_limits<int64_t>::max());

/// Most bytes of a pipe or device that are kept in memory: it may have no end.
inline constexpr int64_t kMaxStreamBytes = int64_t{1} << 30;

/// OpenToRead and ReadRest.
absl::StatusOr<std::string> ReadNamed(const std::string& path, Allowed allowed,
                                      int64_t max_bytes = std::numeric_limits<int64_t>::max(),
                                      absl::Duration patience = kPipePatience);

/// The first line of a file, pipe or device, without what ends it; all of it where it is one line. Reads no
/// further, since whoever writes into a pipe may leave it open. kInvalidArgument also where the line has more
/// than `max_bytes`, of which `what` tells what is allowed.
absl::StatusOr<std::string> ReadFirstLine(const std::string& path, size_t max_bytes, const char* what,
                                          absl::Duration patience = kPipePatience);

/// "cannot write PATH: " and the reason that `error` (errno) is: kFailedPrecondition where the disk is full
/// or fails, else kInvalidArgument, since then it is the path.
absl::Status WriteError(const std::string& path, int error);

/// Opens a file to be written: a regular one is emptied, and made if there is none; into a pipe or device
/// goes what is written. A pipe that nobody has opened for reading within `patience` is refused. Errors are
/// those of WriteError.
absl::StatusOr<Descriptor> OpenToWrite(const std::string& path, absl::Duration patience = kPipePatience);

/// As WriteError where it does not go there. For OpenToWrite's `path`.
absl::Status WriteAll(const Descriptor& file, const std::string& path, std::string_view bytes);

/// Whether a file may be renamed to `path` without loss: nothing but a regular file may be there, since
/// whoever renames one to /dev/null as root takes the device from all programs of the machine.
/// kInvalidArgument, as "FLAG is PATH, which is a device; allowed: ...".
absl::Status CheckReplaceable(std::string_view flag, const std::string& path);

/// Whether `path` is something that goes on under its name when it is written to: a pipe, a device or a
/// socket.
bool IsPipeOrDevice(const std::string& path);

}  // namespace kvblend::server
