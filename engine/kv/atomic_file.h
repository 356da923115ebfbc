// Files that are replaced as a whole.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend::kv {

/// Writes next to the name, brings it to the disk, renames: whenever a process or the machine dies, the old
/// file is there or the new one. kUnavailable where another process is about the same; kInvalidArgument where
/// something else than a regular file stands beside the name; or the system's error, naming the file. Then
/// the old one is there.
absl::Status ReplaceFile(const std::string& path, std::string_view bytes);

/// Whether ReplaceFile can do that now: before hours of work on what is to be written. What stands there
/// stays. kInvalidArgument: it is no regular file. Otherwise as ReplaceFile.
absl::Status CheckReplaceable(const std::string& path);

/// Brings its absence to the disk, too. OK where it was not there.
absl::Status RemoveFile(const std::string& path);

/// What a process that died in ReplaceFile left beside the name. REQUIRES: nobody else replaces the file.
void RemoveUnfinished(const std::string& path);

/// kNotFound, kPermissionDenied, kDataLoss, or kInvalidArgument where it is no regular file, naming it. Of
/// what does not begin with `magic` only the beginning is read: a model that was given by mistake may be
/// larger than memory.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, std::string_view magic);

}  // namespace kvblend::kv
