// What a disk tier finds in its folder when it is opened. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/disk/disk_health.h"
#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/entry_files.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/format/entry_format.h"

namespace kvblend::store::internal {

/// Besides the sound entries.
struct ScanCounts {
  int64_t foreign_files = 0;
  int64_t unsupported_entries = 0;
  int64_t unreadable_entries = 0;
  int64_t damaged_entries = 0;
  /// The unsupported and the unreadable ones, whose files stay, and whether they are pinned.
  std::vector<std::pair<ChunkKey, bool>> left_alone = {};
};

/// Reads the headers of all entries on up to num_threads threads, sets damaged ones aside, and removes pins
/// that have no entry. `on_entry` is called for each sound one, on any thread, one call at a time. Folders
/// and files that can't be read are told to `health`; only that the folder of entries can't be listed is an
/// error.
absl::StatusOr<ScanCounts> ScanFolder(
    FileSystem& fs, const DiskPaths& paths, EntryFiles& files, DiskHealth& health, int num_threads,
    const std::function<void(const EntryHeader& header, bool pinned)>& on_entry);

}  // namespace kvblend::store::internal
