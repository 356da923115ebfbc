// The files of a disk tier's folder, by their names. Private to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/api/chunk_key.h"
#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/disk/folder_audit.h"

namespace kvblend::store::internal {

/// In any order.
struct FolderFiles {
  struct Entry {
    ChunkKey key;
    bool pinned = false;
  };
  std::vector<Entry> entries;
  std::vector<ChunkKey> loose_pins;  // of entries that are not there
  std::vector<std::string> foreign;  // full paths of what has no name of ours
};

/// `on_listed` is told, on any thread, how the listing of each folder below that of the entries went; when it
/// returns an error, that is the outcome. kNotFound: there is no folder of entries. kCancelled: keep_going
/// says no.
absl::StatusOr<FolderFiles> ListFolderFiles(
    FileSystem& fs, const DiskPaths& paths, int num_threads, const std::function<bool()>& keep_going,
    const std::function<absl::Status(const absl::Status&)>& on_listed);

/// Number and bytes of the regular files in a folder whose names are ours; zeros where there is no such
/// folder.
absl::StatusOr<FileTotals> TotalsOf(FileSystem& fs, const std::string& folder,
                                    bool (*is_ours)(std::string_view name));

/// Takes the folder's lock for someone who is no server. kFailedPrecondition names the folder and who has it.
absl::StatusOr<std::unique_ptr<FileLock>> LockFolder(FileSystem& fs, const DiskPaths& paths);

/// Unlinks; OK when the file is not there.
absl::Status UnlinkIfThere(FileSystem& fs, const std::string& path);

/// Calls work(0) ... work(count - 1) on up to num_threads threads, until one returns an error, which is then
/// returned; kCancelled once keep_going says no.
absl::Status ForEachInParallel(size_t count, int num_threads, const std::function<bool()>& keep_going,
                               const std::function<absl::Status(size_t)>& work);

}  // namespace kvblend::store::internal
