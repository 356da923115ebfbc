// Exit codes of the command line, as `kvblend --help` documents them.
#pragma once

#include "absl/status/status.h"

namespace kvblend::server::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitError = 1,
  kExitUsage = 2,        // a wrong flag, or a value that the engine refuses
  kExitNotFound = 3,     // no such file or chunk
  kExitUnavailable = 4,  // the server can't be reached, is full, or too slow for the deadline: try again
  kExitDamaged =
      5,  // the rest was done, but some of what was read is damaged or of no use, or answers differ
  kExitInterrupted = 130,
};

inline ExitCode ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return kExitUsage;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return kExitUnavailable;
    case absl::StatusCode::kDataLoss:
      return kExitDamaged;
    case absl::StatusCode::kCancelled:
      return kExitInterrupted;
    default:
      return kExitError;
  }
}

}  // namespace kvblend::server::cli
