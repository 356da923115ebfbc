// Files that are replaced as a whole.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvblend::kv {

/// A file that is written next to a name and takes its place once it is whole: whenever a process or the
/// machine dies, the old file is there or the new one. What is behind a link is replaced, and the link stays;
/// so do the mode and, where the process may, the owner of what was there. Not thread-safe.
class FileReplacement {
 public:
  /// kUnavailable where another process is about the same; kInvalidArgument where something else than a
  /// regular file has the name or stands beside it; or the system's error, naming the file.
  static absl::StatusOr<FileReplacement> Begin(const std::string& path);
  FileReplacement(FileReplacement&& other) noexcept;
  FileReplacement& operator=(FileReplacement&&) = delete;
  /// The old file stays, unless Finish was OK.
  ~FileReplacement();

  absl::Status Write(std::string_view bytes);
  /// Brings it to the disk and renames it. To be called once, after which nothing more is written.
  absl::Status Finish();

 private:
  FileReplacement(std::string path, std::string part, int file);

  const std::string path_;  // without links
  const std::string part_;
  int file_;                // locked; -1: moved away
  bool unfinished_ = true;  // `part_` is ours to remove
};

/// A FileReplacement of these bytes. After an error the old file is there.
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
