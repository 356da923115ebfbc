// The files of a disk tier's entries, by their keys. Private to this folder.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/api/chunk_key.h"
#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/format/entry_format.h"

namespace kvblend::store::internal {

/// Reads and checks the header of an entry's file. kDataLoss naming the file: damaged, of another key than
/// `key`, or the file is longer or shorter than the header says. kUnimplemented: of a newer version, or so
/// it says. Otherwise the file could not be read.
absl::StatusOr<EntryHeader> ReadHeader(File& file, const ChunkKey& key);

/// Writes, opens and removes them. Thread-safe, but callers see to it that only one at a time changes the
/// files of a key.
class EntryFiles {
 public:
  /// `fs` must outlive it. `max_quarantined_files`: beyond it, damaged entries are deleted.
  EntryFiles(FileSystem& fs, DiskPaths paths, int64_t max_quarantined_files)
      : fs_(fs), paths_(std::move(paths)), max_quarantined_files_(max_quarantined_files) {}

  /// The entry is durable when this returns OK, and otherwise not there; but when it `replaces` another of
  /// the same chunk, one of the two is.
  absl::Status Write(const ChunkKey& key, std::string_view header, const ChunkKv& kv, bool replaces);
  /// Makes sure that what is in the folder of an entry's file is durable. kNotFound: somebody has removed
  /// it.
  absl::Status MakeFolderDurable(const ChunkKey& key);
  /// Takes nothing for durable that was: somebody else has removed folders.
  void ForgetFolders();

  struct OpenFile {
    std::unique_ptr<File> file;
    EntryHeader header;
  };
  /// For direct reads. Of an entry that was sound before: what claims a newer version is damaged.
  absl::StatusOr<OpenFile> Open(const ChunkKey& key) const;
  /// For direct reads, once its header is known.
  absl::StatusOr<std::shared_ptr<File>> OpenAgain(const ChunkKey& key) const;

  /// kNotFound: somebody has removed the file. Reads nothing of it.
  absl::Status LookFor(const ChunkKey& key) const;

  /// Removes the entry's file, but not for good if the machine dies now. On error it is still there.
  absl::Status Unlink(const ChunkKey& key);
  /// Removes an entry and its pin, durably.
  absl::Status Erase(const ChunkKey& key);
  /// Erase of each, in the order of `keys`, but for the waiting, which is done for many at once.
  std::vector<absl::Status> EraseAll(absl::Span<const ChunkKey> keys);
  /// Durable. On error nothing has changed, unless the disk refuses to undo it as well. REQUIRES: an entry
  /// that is to be unpinned is pinned.
  absl::Status SetPinned(const ChunkKey& key, bool pinned);

  /// Sets a damaged entry aside, or deletes it when too many are. On error its file is still there.
  absl::Status Quarantine(const ChunkKey& key);
  /// Files that are there already.
  void SetQuarantinedFiles(int64_t files) { quarantined_files_ = files; }
  int64_t quarantined_files() const { return quarantined_files_; }
  int64_t delete_failures() const { return delete_failures_; }

 private:
  /// Makes the folder of an entry's file, and its name durable, but not what is in it.
  absl::Status MakeFolder(const ChunkKey& key);
  void Remember(const ChunkKey& key);

  FileSystem& fs_;
  const DiskPaths paths_;
  const int64_t max_quarantined_files_;
  std::atomic<int64_t> quarantined_files_{0};
  std::atomic<int64_t> delete_failures_{0};
  std::atomic<uint64_t> next_temporary_{0};
  // What this process has synced; no IO while mutex_ is held.
  absl::Mutex mutex_;
  std::bitset<256> durable_outer_folders_ ABSL_GUARDED_BY(mutex_);         // entries/ab: that they are there
  absl::flat_hash_set<uint16_t> durable_folders_ ABSL_GUARDED_BY(mutex_);  // entries/ab/cd, with what is in
};

}  // namespace kvblend::store::internal
