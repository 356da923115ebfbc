#include "server/files/file_watcher.h"

#include <sys/stat.h>

#include <utility>

#include "absl/time/time.h"

namespace kvblend::server {
namespace {

constexpr absl::Duration kLookEvery = absl::Milliseconds(250);

}  // namespace

std::vector<FileState> LookAt(const std::vector<std::string>& paths) {
  std::vector<FileState> states;
  for (const std::string& path : paths) {
    FileState& state = states.emplace_back();
    struct stat found;
    if (stat(path.c_str(), &found) != 0) continue;
    state = {.changed_nanoseconds = int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec,
             .size = found.st_size,
             .inode = found.st_ino};
  }
  return states;
}

FileWatcher::FileWatcher(std::vector<std::string> paths, std::vector<FileState> seen,
                         std::function<void()> changed)
    : paths_(std::move(paths)),
      seen_(std::move(seen)),
      changed_(std::move(changed)),
      thread_([this] { Watch(); }) {}

FileWatcher::~FileWatcher() {
  stop_.Notify();
  thread_.join();
}

void FileWatcher::Watch() {
  while (!stop_.WaitForNotificationWithTimeout(kLookEvery)) {
    std::vector<FileState> now = LookAt(paths_);
    if (now == seen_) continue;
    seen_ = std::move(now);
    changed_();
  }
}

}  // namespace kvblend::server
