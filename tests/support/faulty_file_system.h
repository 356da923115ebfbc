// A file system that fails when told to: every operation passes through one place that may refuse it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/disk/file_system.h"

namespace kvblend::store {

/// Thread-safe. Files opened through it have no descriptor, so that every read is seen.
class FaultyFileSystem final : public FileSystem {
 public:
  enum class Operation : uint8_t {
    kOpen,
    kCreate,
    kRead,
    kWrite,
    kSync,
    kSize,
    kRename,
    kUnlink,
    kMakeFolder,
    kSyncFolder,
    kList,
    kSpace,
    kCheckWritable,
    kLock
  };
  /// Called before an operation, the number-th from 1; what is not OK is its outcome. Without locks held.
  using Fault = std::function<absl::Status(int64_t number, Operation operation, const std::string& path)>;

  explicit FaultyFileSystem(FileSystem& base) : base_(base) {}

  void SetFault(Fault fault) {
    absl::MutexLock lock(&mutex_);
    fault_ = std::move(fault);
  }
  /// Operations of one kind fail from now on.
  void FailAll(Operation operation, const absl::Status& status) {
    SetFault([=](int64_t, Operation attempted, const std::string&) {
      return attempted == operation ? status : absl::OkStatus();
    });
  }
  void Heal() { SetFault(nullptr); }
  /// As if the process died in operation `number`, counted from now: it and all later ones fail. A write that
  /// it dies in has written half.
  void DieAt(int64_t number) {
    absl::MutexLock lock(&mutex_);
    death_ = num_operations_ + number;
  }
  bool dead() const {
    absl::MutexLock lock(&mutex_);
    return num_operations_ >= death_;
  }
  /// Reads and writes do at most so many bytes at once.
  void SetMaxTransfer(int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    max_transfer_ = bytes;
  }
  int64_t num_operations() const {
    absl::MutexLock lock(&mutex_);
    return num_operations_;
  }

  /// Files that are open now, and that were at most.
  int64_t open_files() const {
    absl::MutexLock lock(&mutex_);
    return open_files_;
  }
  int64_t most_open_files() const {
    absl::MutexLock lock(&mutex_);
    return most_open_files_;
  }
  /// Waits until so many files are open; false: they were not for ten seconds.
  bool AwaitOpenFiles(int64_t files) const {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return open_files_ == files; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(10));
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::StatusOr<std::vector<FolderItem>> List(const std::string& path) override;
  absl::StatusOr<Space> SpaceOf(const std::string& path) override;
  absl::Status CheckWritable(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, std::string_view owner) override;

 private:
  friend class FaultyFile;
  absl::Status Attempt(Operation operation, const std::string& path, bool* dies_now = nullptr);
  int64_t max_transfer() const {
    absl::MutexLock lock(&mutex_);
    return max_transfer_;
  }

  FileSystem& base_;
  mutable absl::Mutex mutex_;
  Fault fault_ ABSL_GUARDED_BY(mutex_);
  int64_t num_operations_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t death_ ABSL_GUARDED_BY(mutex_) = INT64_MAX;
  int64_t max_transfer_ ABSL_GUARDED_BY(mutex_) = INT64_MAX;
  int64_t open_files_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t most_open_files_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvblend::store
