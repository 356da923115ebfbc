#include "engine/store/disk/folder_files.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"

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

/// Lists one folder of the two levels below that of the entries.
class FolderLister {
 public:
  using OnListed = std::function<absl::Status(const absl::Status&)>;
  FolderLister(FileSystem& fs, const DiskPaths& paths, const OnListed& on_listed)
      : fs_(fs), paths_(paths), on_listed_(on_listed) {}

  absl::Status ListOuter(const std::string& outer) {
    const std::string folder = absl::StrCat(paths_.Entries(), "/", outer);
    return List(folder, [&](const FolderItem& item) {
      if (item.is_folder && DiskPaths::IsFolderName(item.name)) {
        return ListInner(absl::StrCat(folder, "/", item.name), outer, item.name);
      }
      found_.foreign.push_back(absl::StrCat(folder, "/", item.name));
      return absl::OkStatus();
    });
  }
  const FolderFiles& found() const { return found_; }

 private:
  absl::Status List(const std::string& folder,
                    const std::function<absl::Status(const FolderItem&)>& on_item) {
    absl::Status outcome;
    const absl::Status listed = ForEachItem(fs_, folder, [&](const FolderItem& item) {
      outcome.Update(on_item(item));
      return absl::OkStatus();
    });
    outcome.Update(on_listed_(listed));
    return outcome;
  }

  absl::Status ListInner(const std::string& folder, const std::string& outer, const std::string& inner) {
    const size_t first = found_.entries.size();
    std::set<ChunkKey> pins;
    KVBLEND_RETURN_IF_ERROR(List(folder, [&](const FolderItem& item) {
      if (const auto key = DiskPaths::KeyOf(outer, inner, item.name, ".kvb1"); key && item.is_file) {
        found_.entries.push_back({.key = *key});
      } else if (const auto pin = DiskPaths::KeyOf(outer, inner, item.name, ".pin"); pin && item.is_file) {
        pins.insert(*pin);
      } else {
        found_.foreign.push_back(absl::StrCat(folder, "/", item.name));
      }
      return absl::OkStatus();
    }));
    for (size_t i = first; i < found_.entries.size(); ++i) {
      found_.entries[i].pinned = pins.erase(found_.entries[i].key) > 0;
    }
    found_.loose_pins.insert(found_.loose_pins.end(), pins.begin(), pins.end());
    return absl::OkStatus();
  }

  FileSystem& fs_;
  const DiskPaths& paths_;
  const OnListed& on_listed_;
  FolderFiles found_;
};

template <typename T>
void Append(const std::vector<T>& more, std::vector<T>& all) {
  all.insert(all.end(), more.begin(), more.end());
}

}  // namespace

absl::StatusOr<FolderFiles> ListFolderFiles(
    FileSystem& fs, const DiskPaths& paths, int num_threads, const std::function<bool()>& keep_going,
    const std::function<absl::Status(const absl::Status&)>& on_listed) {
  const absl::StatusOr<std::vector<FolderItem>> items = fs.List(paths.Entries());
  if (absl::IsNotFound(items.status())) {
    return absl::NotFoundError(
        absl::StrCat(paths.root, " is no folder of stored chunks: there is no ", paths.Entries()));
  }
  KVBLEND_RETURN_IF_ERROR(items.status());
  absl::Mutex mutex;
  FolderFiles files;  // guarded by mutex
  std::vector<std::string> outer_folders;
  for (const FolderItem& item : *items) {
    if (item.is_folder && DiskPaths::IsFolderName(item.name)) {
      outer_folders.push_back(item.name);
    } else {
      files.foreign.push_back(absl::StrCat(paths.Entries(), "/", item.name));
    }
  }
  KVBLEND_RETURN_IF_ERROR(ForEachInParallel(outer_folders.size(), num_threads, keep_going, [&](size_t i) {
    FolderLister lister(fs, paths, on_listed);
    KVBLEND_RETURN_IF_ERROR(lister.ListOuter(outer_folders[i]));
    absl::MutexLock lock(&mutex);
    Append(lister.found().entries, files.entries);
    Append(lister.found().loose_pins, files.loose_pins);
    Append(lister.found().foreign, files.foreign);
    return absl::OkStatus();
  }));
  return files;
}

absl::StatusOr<FileTotals> TotalsOf(FileSystem& fs, const std::string& folder,
                                    bool (*is_ours)(std::string_view name)) {
  FileTotals totals;
  KVBLEND_RETURN_IF_ERROR(ForEachItem(fs, folder, [&](const FolderItem& item) {
    if (!item.is_file || !is_ours(item.name)) return absl::OkStatus();
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
  return absl::FailedPreconditionError(
      absl::StrCat(lock.status().message(),
                   ". Stop the server first where one runs: it knows these files and would miss them"));
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
  try {
    for (size_t i = 1; i < wanted; ++i) threads.emplace_back(run);
  } catch (const std::system_error&) {
    // The system has no more threads; those that there are do it all.
  }
  run();
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mutex);
  return outcome;
}

}  // namespace kvblend::store::internal
