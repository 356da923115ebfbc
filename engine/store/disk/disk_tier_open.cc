// Opening a disk tier: taking the folder, clearing what was half written, building the index from headers.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/disk/disk_tier.h"
#include "engine/store/disk/read_header.h"
#include "spdlog/spdlog.h"

namespace kvblend::store {

absl::Status DiskTier::Start() {
  KVBLEND_RETURN_IF_ERROR(MakeFolders(fs_, options_.path));
  KVBLEND_ASSIGN_OR_RETURN(lock_, fs_.Lock(paths_.Lock(), absl::StrCat("process ", getpid())));
  for (const std::string& folder : {paths_.Entries(), paths_.Temporary(), paths_.Quarantine()}) {
    KVBLEND_RETURN_IF_ERROR(MakeFolders(fs_, folder));
  }
  KVBLEND_RETURN_IF_ERROR(fs_.SyncFolder(options_.path));
  // It may have been made by a process that died before it synced it. Who may not read the folder above
  // can't.
  const absl::Status above = fs_.SyncFolder(FolderAbove(options_.path));
  if (!above.ok() && !absl::IsPermissionDenied(above)) return above;
  KVBLEND_RETURN_IF_ERROR(RemoveTemporaryFiles());
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<FolderItem> quarantined, fs_.List(paths_.Quarantine()));
  {
    absl::MutexLock lock(&mutex_);
    stats_.quarantined_files = static_cast<int64_t>(quarantined.size());
  }
  KVBLEND_RETURN_IF_ERROR(ScanEntries());
  EvictToQuota();
  reads_ = ReadQueue::Create(options_.reads);
  const DiskTierStats stats = Stats();
  spdlog::info(
      "chunk store on disk: {} holds {} entries ({} of {} bytes), read with {}; {} damaged, {} of a newer "
      "version, "
      "{} unreadable, {} foreign files, {} temporary files removed",
      options_.path, stats.entries, stats.bytes, stats.quota_bytes, stats.reader, stats.quarantined,
      stats.unsupported_entries, stats.unreadable_entries, stats.foreign_files,
      stats.removed_temporary_files);
  return absl::OkStatus();
}

absl::Status DiskTier::RemoveTemporaryFiles() {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<FolderItem> items, fs_.List(paths_.Temporary()));
  for (const FolderItem& item : items) {
    if (item.is_folder) continue;
    KVBLEND_RETURN_IF_ERROR(fs_.Unlink(absl::StrCat(paths_.Temporary(), "/", item.name)));
    absl::MutexLock lock(&mutex_);
    ++stats_.removed_temporary_files;
  }
  return absl::OkStatus();
}

absl::Status DiskTier::ScanEntries() {
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<FolderItem> items, fs_.List(paths_.Entries()));
  std::vector<std::string> outer_folders;
  int64_t num_foreign = 0;
  for (const FolderItem& item : items) {
    if (item.is_folder && internal::DiskPaths::IsFolderName(item.name)) {
      outer_folders.push_back(item.name);
    } else {
      ++num_foreign;
    }
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < outer_folders.size(); i = next++) ScanOuterFolder(outer_folders[i]);
  };
  std::vector<std::thread> threads;
  const auto num_threads =
      std::min(static_cast<size_t>(std::max(options_.num_scan_threads, 1)), outer_folders.size());
  for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mutex_);
  stats_.foreign_files += num_foreign;
  stats_.found_entries = index_.size();
  index_.RequeueOldestFirst();
  return absl::OkStatus();
}

void DiskTier::ScanOuterFolder(const std::string& outer) {
  const absl::StatusOr<std::vector<FolderItem>> items = fs_.List(absl::StrCat(paths_.Entries(), "/", outer));
  read_health_.Report(items.status());
  if (!items.ok()) return;
  for (const FolderItem& item : *items) {
    if (item.is_folder && internal::DiskPaths::IsFolderName(item.name)) {
      ScanInnerFolder(outer, item.name);
    } else {
      absl::MutexLock lock(&mutex_);
      ++stats_.foreign_files;
    }
  }
}

void DiskTier::ScanInnerFolder(const std::string& outer, const std::string& inner) {
  const std::string folder = absl::StrCat(paths_.Entries(), "/", outer, "/", inner);
  const absl::StatusOr<std::vector<FolderItem>> items = fs_.List(folder);
  read_health_.Report(items.status());
  if (!items.ok()) return;
  std::vector<ChunkKey> keys;
  std::vector<ChunkKey> pins;
  int64_t num_foreign = 0;
  for (const FolderItem& item : *items) {
    if (const auto key = internal::DiskPaths::KeyOf(outer, inner, item.name, ".kvb1"); key && item.is_file) {
      keys.push_back(*key);
    } else if (const auto pin = internal::DiskPaths::KeyOf(outer, inner, item.name, ".pin");
               pin && item.is_file) {
      pins.push_back(*pin);
    } else {
      ++num_foreign;
    }
  }
  std::vector<EntryHeader> headers;
  std::vector<ChunkKey> damaged;
  int64_t num_unsupported = 0;
  int64_t num_unreadable = 0;
  for (const ChunkKey& key : keys) {
    absl::StatusOr<EntryHeader> header = absl::InternalError("not read");
    if (const auto file = fs_.Open(paths_.Entry(key), OpenMode::kRead); file.ok()) {
      header = internal::ReadHeader(**file, key);
    } else {
      header = file.status();
    }
    if (header.ok()) {
      headers.push_back(*std::move(header));
    } else if (absl::IsDataLoss(header.status())) {
      damaged.push_back(key);
    } else if (absl::IsUnimplemented(header.status())) {
      ++num_unsupported;
    } else {
      ++num_unreadable;
      read_health_.Report(header.status());
    }
  }
  for (const ChunkKey& key : damaged) MoveToQuarantine(key);
  for (const ChunkKey& pin : pins) {
    const bool has_entry = std::find(keys.begin(), keys.end(), pin) != keys.end() &&
                           std::find(damaged.begin(), damaged.end(), pin) == damaged.end();
    if (!has_entry) fs_.Unlink(paths_.Pin(pin)).IgnoreError();
  }
  absl::MutexLock lock(&mutex_);
  stats_.foreign_files += num_foreign;
  stats_.unsupported_entries += num_unsupported;
  stats_.unreadable_entries += num_unreadable;
  stats_.quarantined += static_cast<int64_t>(damaged.size());
  for (const EntryHeader& header : headers) {
    const Index::Slot slot = index_.Insert({.address = header.address,
                                            .label = header.label,
                                            .compute_cost_seconds = header.compute_cost_seconds,
                                            .created = header.created,
                                            .bytes = header.total_bytes()});
    if (std::find(pins.begin(), pins.end(), header.address.key) != pins.end()) index_.SetPinned(slot, true);
  }
}

}  // namespace kvblend::store
