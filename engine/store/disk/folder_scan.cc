#include "engine/store/disk/folder_scan.h"

#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/status_macros.h"
#include "engine/store/disk/folder_files.h"

namespace kvblend::store::internal {
namespace {

class Scanner {
 public:
  using OnEntry = std::function<void(const EntryHeader& header, bool pinned)>;

  Scanner(FileSystem& fs, const DiskPaths& paths, EntryFiles& files, DiskHealth& health,
          const OnEntry& on_entry)
      : fs_(fs), paths_(paths), files_(files), health_(health), on_entry_(on_entry) {}

  absl::StatusOr<ScanCounts> Run(int num_threads) {
    KVBLEND_ASSIGN_OR_RETURN(const std::vector<FolderItem> items, fs_.List(paths_.Entries()));
    const std::vector<std::string> folders = FoldersOf(items);
    KVBLEND_RETURN_IF_ERROR(ForEachInParallel(
        folders.size(), num_threads, [] { return true; },
        [&](size_t i) {
          ScanOuterFolder(folders[i]);
          return absl::OkStatus();
        }));
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  /// The names that are ours; the others are counted.
  std::vector<std::string> FoldersOf(const std::vector<FolderItem>& items) {
    std::vector<std::string> folders;
    for (const FolderItem& item : items) {
      if (item.is_folder && DiskPaths::IsFolderName(item.name)) folders.push_back(item.name);
    }
    absl::MutexLock lock(&mutex_);
    counts_.foreign_files += static_cast<int64_t>(items.size() - folders.size());
    return folders;
  }

  /// Nothing when it can't be listed.
  std::vector<FolderItem> List(const std::string& folder) {
    absl::StatusOr<std::vector<FolderItem>> items = fs_.List(folder);
    health_.Report(items.status());
    return items.ok() ? *std::move(items) : std::vector<FolderItem>();
  }

  void ScanOuterFolder(const std::string& outer) {
    const std::string folder = absl::StrCat(paths_.Entries(), "/", outer);
    for (const std::string& inner : FoldersOf(List(folder))) {
      ScanInnerFolder(absl::StrCat(folder, "/", inner), outer, inner);
    }
  }

  void ScanInnerFolder(const std::string& folder, const std::string& outer, const std::string& inner) {
    std::vector<ChunkKey> keys;
    std::set<ChunkKey> pins;
    int64_t num_foreign = 0;
    for (const FolderItem& item : List(folder)) {
      if (const auto key = DiskPaths::KeyOf(outer, inner, item.name, ".kvb1"); key && item.is_file) {
        keys.push_back(*key);
      } else if (const auto pin = DiskPaths::KeyOf(outer, inner, item.name, ".pin"); pin && item.is_file) {
        pins.insert(*pin);
      } else {
        ++num_foreign;
      }
    }
    for (const ChunkKey& key : keys) ScanEntry(key, pins.erase(key) > 0);
    for (const ChunkKey& without_entry : pins) fs_.Unlink(paths_.Pin(without_entry)).IgnoreError();
    absl::MutexLock lock(&mutex_);
    counts_.foreign_files += num_foreign;
  }

  void ScanEntry(const ChunkKey& key, bool pinned) {
    absl::StatusOr<EntryHeader> header = absl::InternalError("not read");
    if (const auto file = fs_.Open(paths_.Entry(key), OpenMode::kRead); file.ok()) {
      header = ReadHeader(**file, key);
    } else {
      header = file.status();
    }
    const bool is_damaged = absl::IsDataLoss(header.status());
    const bool is_newer = absl::IsUnimplemented(header.status());
    if (is_damaged) files_.Quarantine(key);
    if (!header.ok() && !is_damaged && !is_newer) health_.Report(header.status());
    absl::MutexLock lock(&mutex_);
    if (header.ok()) return on_entry_(*header, pinned);
    ++(is_damaged ? counts_.damaged_entries
       : is_newer ? counts_.unsupported_entries
                  : counts_.unreadable_entries);
  }

  FileSystem& fs_;
  const DiskPaths& paths_;
  EntryFiles& files_;
  DiskHealth& health_;
  const OnEntry& on_entry_;
  absl::Mutex mutex_;
  ScanCounts counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<ScanCounts> ScanFolder(
    FileSystem& fs, const DiskPaths& paths, EntryFiles& files, DiskHealth& health, int num_threads,
    const std::function<void(const EntryHeader& header, bool pinned)>& on_entry) {
  return Scanner(fs, paths, files, health, on_entry).Run(num_threads);
}

}  // namespace kvblend::store::internal
