// Tells when files that a running server has read become others.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace kvblend::server {

/// By which a file is known to be another one.
struct FileState {
  int64_t changed_nanoseconds = 0, size = -1;  // -1: there is none
  uint64_t inode = 0;
  bool operator==(const FileState&) const = default;
};

/// The state of each path, symbolic links followed.
std::vector<FileState> LookAt(const std::vector<std::string>& paths);

/// Looks at the files several times a second, in a thread of its own.
class FileWatcher {
 public:
  /// `seen` is what LookAt said before the files were read; `changed` is called in the watcher's thread
  /// whenever they are others than before.
  FileWatcher(std::vector<std::string> paths, std::vector<FileState> seen, std::function<void()> changed);
  /// Waits for a call under way.
  ~FileWatcher();

 private:
  void Watch();

  const std::vector<std::string> paths_;
  std::vector<FileState> seen_;  // the thread's
  const std::function<void()> changed_;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace kvblend::server
