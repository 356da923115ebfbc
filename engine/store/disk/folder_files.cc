#include "engine/store/disk/folder_files.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "engine/api/status_macros.h"

namespace kvblend::store::internal {
namespace {

/// Calls `on_item` for what a folder holds; a folder that has just been removed holds nothing.
absl::Status ForEachItem(FileSystem& fs, const std::string& folder,
                         const std::function<absl::Status(const FolderItem&)>& on_item) {
  const absl::StatusOr<std::vector<FolderItem>> items = fs.List(folder);
  if (absl::IsNotFound(items.status())) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(items.status());
  for (const FolderItem& item : *items) KVBLEND_RETURN_IF_ERROR(on_item(item));
  return absl::OkStatus();
}

absl::Status ListInnerFolder(FileSystem& fs, const DiskPaths& paths, const std::string& outer,
                             const std::string& inner, FolderFiles& files) {
  const std::string folder = absl::StrCat(paths.Entries(), "/", outer, "/", inner);
  std::set<ChunkKey> keys;
  std::set<ChunkKey> pins;
  KVBLEND_RETURN_IF_ERROR(ForEachItem(fs, folder, [&](const FolderItem& item) {
    if (const auto key = DiskPaths::KeyOf(outer, inner, item.name, ".kvb1"); key && item.is_file) {
      keys.insert(*key);
    } else if (const auto pin = DiskPaths::KeyOf(outer, inner, item.name, ".pin"); pin && item.is_file) {
      pins.insert(*pin);
    } else {
      files.foreign.push_back(absl::StrCat(folder, "/", item.name));
    }
    return absl::OkStatus();
  }));
  for (const ChunkKey& key : keys) files.entries.push_back({.key = key, .pinned = pins.contains(key)});
  for (const ChunkKey& pin : pins) {
    if (!keys.contains(pin)) files.loose_pins.push_back(pin);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FolderFiles> ListFolderFiles(FileSystem& fs, const DiskPaths& paths,
                                            const std::function<bool()>& keep_going) {
  const absl::StatusOr<std::vector<FolderItem>> outer_items = fs.List(paths.Entries());
  if (absl::IsNotFound(outer_items.status())) {
    return absl::NotFoundError(
        absl::StrCat(paths.root, " is no folder of stored chunks: there is no ", paths.Entries()));
  }
  KVBLEND_RETURN_IF_ERROR(outer_items.status());
  FolderFiles files;
  for (const FolderItem& outer : *outer_items) {
    if (!outer.is_folder || !DiskPaths::IsFolderName(outer.name)) {
      files.foreign.push_back(absl::StrCat(paths.Entries(), "/", outer.name));
      continue;
    }
    if (!keep_going()) return absl::CancelledError("interrupted");
    const std::string folder = absl::StrCat(paths.Entries(), "/", outer.name);
    KVBLEND_RETURN_IF_ERROR(ForEachItem(fs, folder, [&](const FolderItem& inner) {
      if (inner.is_folder && DiskPaths::IsFolderName(inner.name)) {
        return ListInnerFolder(fs, paths, outer.name, inner.name, files);
      }
      files.foreign.push_back(absl::StrCat(folder, "/", inner.name));
      return absl::OkStatus();
    }));
  }
  std::sort(files.entries.begin(), files.entries.end(),
            [](const auto& a, const auto& b) { return a.key < b.key; });
  std::sort(files.loose_pins.begin(), files.loose_pins.end());
  std::sort(files.foreign.begin(), files.foreign.end());
  return files;
}

absl::StatusOr<FileTotals> TotalsOf(FileSystem& fs, const std::string& folder) {
  FileTotals totals;
  KVBLEND_RETURN_IF_ERROR(ForEachItem(fs, folder, [&](const FolderItem& item) {
    if (!item.is_file) return absl::OkStatus();
    const absl::StatusOr<std::unique_ptr<File>> file =
        fs.Open(absl::StrCat(folder, "/", item.name), OpenMode::kRead);
    if (absl::IsNotFound(file.status())) return absl::OkStatus();  // gone meanwhile
    ++totals.files;
    if (!file.ok()) return absl::OkStatus();
    if (const absl::StatusOr<int64_t> bytes = (*file)->Size(); bytes.ok()) totals.bytes += *bytes;
    return absl::OkStatus();
  }));
  return totals;
}

absl::StatusOr<std::unique_ptr<FileLock>> LockFolder(FileSystem& fs, const DiskPaths& paths) {
  absl::StatusOr<std::unique_ptr<FileLock>> lock =
      fs.Lock(paths.Lock(), absl::StrCat("process ", getpid(), " (kvblend store)"));
  if (lock.ok() || !absl::IsFailedPrecondition(lock.status())) return lock;
  return absl::FailedPreconditionError(absl::StrCat(
      lock.status().message(), ". Stop the server first: it knows these files and would miss them"));
}

absl::Status UnlinkIfThere(FileSystem& fs, const std::string& path) {
  absl::Status status = fs.Unlink(path);
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status ForEachInParallel(size_t count, int num_threads, const std::function<bool()>& keep_going,
                               const std::function<absl::Status(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> stopped = false;
  absl::Mutex mutex;
  absl::Status outcome;  // guarded by mutex
  const auto stop_with = [&](const absl::Status& status) {
    absl::MutexLock lock(&mutex);
    outcome.Update(status);
    stopped = true;
  };
  const auto run = [&] {
    for (size_t i = next++; i < count && !stopped; i = next++) {
      if (!keep_going()) return stop_with(absl::CancelledError("interrupted"));
      if (absl::Status status = work(i); !status.ok()) return stop_with(status);
    }
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min(static_cast<size_t>(std::max(num_threads, 1)), count);
  for (size_t i = 1; i < wanted; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mutex);
  return outcome;
}

}  // namespace kvblend::store::internal
