// A file system in memory that forgets what a real one may forget: for tests of what survives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "engine/store/disk/file_system.h"

namespace kvblend::store {

/// Thread-safe. Paths are absolute, their parts separated by single slashes.
class MemoryFileSystem final : public FileSystem {
 public:
  struct Node;  // private to the implementation

  MemoryFileSystem();
  ~MemoryFileSystem() override;

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status MakeFolder(const std::string& path) override;
  absl::Status SyncFolder(const std::string& path) override;
  absl::StatusOr<std::vector<FolderItem>> List(const std::string& path) override;
  absl::StatusOr<Space> SpaceOf(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path, std::string_view owner) override;

  /// The process dies: locks are given back, files stay as they are.
  void KillProcess();
  /// The machine loses power: of every name that was made, replaced or removed since its folder was synced,
  /// and every 512 bytes written since their file was, the old or the new is there, by chance.
  void LosePower(std::mt19937_64& random);
  /// Writes beyond it are refused with kResourceExhausted.
  void SetCapacity(int64_t bytes);

  // For tests to look at, and damage, what is stored. Paths must be of files.
  bool Exists(const std::string& path) const;
  std::vector<std::byte> Contents(const std::string& path) const;
  void SetContents(const std::string& path, std::vector<std::byte> bytes);  // makes folders too
  /// False, and nothing is called, where no such file is (any more: others may be removing it).
  bool ChangeContents(const std::string& path, absl::FunctionRef<void(std::vector<std::byte>&)> change);
  std::vector<std::string> AllFiles() const;

 private:
  friend class MemoryFile;
  friend class MemoryLock;
  std::shared_ptr<Node> Find(const std::string& path) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<Node>> Folder(const std::string& path) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::shared_ptr<Node> root_ ABSL_GUARDED_BY(mutex_);
  int64_t capacity_bytes_ ABSL_GUARDED_BY(mutex_) = std::numeric_limits<int64_t>::max();
  std::map<std::string, uint64_t> locks_ ABSL_GUARDED_BY(mutex_);  // path -> who
  uint64_t next_lock_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace kvblend::store
