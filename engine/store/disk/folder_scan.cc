#include "engine/store/disk/folder_scan.h"

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "engine/store/disk/folder_files.h"
#include "spdlog/spdlog.h"

namespace kvblend::store::internal {
namespace {

constexpr size_t kMaxNamed = 5;  // damaged entries, in the log

bool KeepGoing() { return true; }

absl::StatusOr<EntryHeader> HeaderOf(FileSystem& fs, const std::string& path, const ChunkKey& key) {
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path, OpenMode::kRead));
  return ReadHeader(*file, key);
}

/// For the next eviction would find out, and long after whoever copied the files as another user has gone.
void WarnOfFoldersNotWritable(FileSystem& fs, const DiskPaths& paths, const FolderFiles& found) {
  std::vector<std::string> folders = {paths.Entries(), paths.Temporary(), paths.Quarantine()};
  std::set<std::pair<uint8_t, uint8_t>> seen;
  for (const FolderFiles::Entry& entry : found.entries) {
    const Digest& digest = entry.key.digest();
    if (seen.emplace(digest[0], digest[1]).second) folders.push_back(paths.Folder(entry.key));
  }
  std::vector<std::string> errors;
  size_t num_refused = 0;
  for (const std::string& folder : folders) {
    const absl::Status status = fs.CheckWritable(folder);
    if (status.ok()) continue;
    if (++num_refused <= kMaxNamed) errors.emplace_back(status.message());
  }
  if (num_refused == 0) return;
  spdlog::warn(
      "chunk store on disk: {} folders below {} cannot be written to, so that chunks in them cannot be removed: "
      "{}{}",
      num_refused, paths.root, absl::StrJoin(errors, "; "), num_refused > errors.size() ? "; ..." : "");
}

}  // namespace

absl::StatusOr<ScanCounts> ScanFolder(
    FileSystem& fs, const DiskPaths& paths, EntryFiles& files, DiskHealth& health, int num_threads,
    const std::function<void(const EntryHeader& header, bool pinned)>& on_entry) {
  KVBLEND_ASSIGN_OR_RETURN(
      const FolderFiles found,
      ListFolderFiles(fs, paths, num_threads, KeepGoing, [&](const absl::Status& listed) {
        health.Report(listed);
        return absl::OkStatus();  // what can be read is better than nothing
      }));
  WarnOfFoldersNotWritable(fs, paths, found);
  absl::Mutex mutex;
  std::vector<std::string> damaged;                                                // guarded by mutex
  ScanCounts counts{.foreign_files = static_cast<int64_t>(found.foreign.size())};  // guarded by mutex
  KVBLEND_RETURN_IF_ERROR(ForEachInParallel(found.entries.size(), num_threads, KeepGoing, [&](size_t i) {
    const auto& [key, pinned] = found.entries[i];
    const absl::StatusOr<EntryHeader> header = HeaderOf(fs, paths.Entry(key), key);
    const bool is_damaged = absl::IsDataLoss(header.status());
    const bool is_newer = absl::IsUnimplemented(header.status());
    if (is_damaged) files.Quarantine(key).IgnoreError();  // then it is damaged for the next start as well
    if (!header.ok() && !is_damaged && !is_newer) health.Report(header.status());
    absl::MutexLock lock(&mutex);
    if (is_damaged && damaged.size() < kMaxNamed) damaged.push_back(key.ToHex());
    if (header.ok()) {
      on_entry(*header, pinned);
    } else {
      ++(is_damaged ? counts.damaged_entries
         : is_newer ? counts.unsupported_entries
                    : counts.unreadable_entries);
      if (!is_damaged) counts.left_alone.emplace_back(key, pinned);
    }
    return absl::OkStatus();
  }));
  if (!damaged.empty()) {
    spdlog::warn("chunk store on disk: {} damaged entries found and set aside in {}: {}{}",
                 counts.damaged_entries, paths.Quarantine(), absl::StrJoin(damaged, ", "),
                 counts.damaged_entries > static_cast<int64_t>(damaged.size()) ? ", ..." : "");
  }
  for (const ChunkKey& pin : found.loose_pins) fs.Unlink(paths.Pin(pin)).IgnoreError();
  return counts;
}

}  // namespace kvblend::store::internal
