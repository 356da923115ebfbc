#include "engine/store/disk/folder_cleanup.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/folder_files.h"

namespace kvblend::store {
namespace {

using internal::DiskPaths;

bool IsChosen(const AuditedEntry& entry, const CleanupOptions& options) {
  if (!options.created_before && !options.model && options.other_models_than.empty() && !options.encoding) {
    return false;
  }
  if (options.created_before && entry.created >= *options.created_before) return false;
  if (options.model && entry.model_fingerprint != *options.model) return false;
  if (options.encoding && entry.format.encoding != *options.encoding) return false;
  return std::ranges::find(options.other_models_than, entry.model_fingerprint) ==
         options.other_models_than.end();
}

double SavedPerByte(const AuditedEntry& entry) {
  return entry.compute_cost_seconds / static_cast<double>(entry.bytes);
}

/// Moves the entries to remove from `kept` to result.removed.
void Choose(std::vector<AuditedEntry> kept, const CleanupOptions& options, CleanupResult& result) {
  for (const AuditedEntry& entry : kept) result.kept_bytes += entry.bytes;
  const auto remove = [&](AuditedEntry& entry) {
    result.kept_bytes -= entry.bytes;
    result.removed_bytes += entry.bytes;
    result.removed.push_back(std::move(entry));
  };
  std::vector<AuditedEntry> rest;
  std::set<ChunkKey> kept_for_pin;
  for (AuditedEntry& entry : kept) {
    if (!IsChosen(entry, options)) {
      rest.push_back(std::move(entry));
    } else if (entry.pinned && !options.pinned) {
      kept_for_pin.insert(entry.key);
      rest.push_back(std::move(entry));
    } else {
      remove(entry);
    }
  }
  result.kept_entries = static_cast<int64_t>(rest.size());
  if (options.max_bytes.has_value()) {
    std::sort(rest.begin(), rest.end(), [](const AuditedEntry& a, const AuditedEntry& b) {
      return std::make_tuple(SavedPerByte(a), a.created, a.key) <
             std::make_tuple(SavedPerByte(b), b.created, b.key);
    });
    for (AuditedEntry& entry : rest) {
      if (result.kept_bytes <= *options.max_bytes) break;
      if (entry.pinned && !options.pinned) {
        kept_for_pin.insert(entry.key);
        continue;
      }
      --result.kept_entries;
      remove(entry);
    }
  }
  result.kept_pinned = static_cast<int64_t>(kept_for_pin.size());
  std::sort(result.removed.begin(), result.removed.end(),
            [](const AuditedEntry& a, const AuditedEntry& b) { return a.key < b.key; });
}

absl::Status RemoveEntries(FileSystem& fs, const DiskPaths& paths, const CleanupOptions& options,
                           const std::vector<AuditedEntry>& entries) {
  std::set<std::string> folders;
  absl::Status status;
  for (const AuditedEntry& entry : entries) {
    if (!options.keep_going()) status = absl::CancelledError("interrupted");
    if (status.ok()) status = internal::UnlinkIfThere(fs, paths.Entry(entry.key));
    // The pin last: an entry that lost its pin would be unpinned, a pin without an entry is nothing.
    if (status.ok() && entry.pinned) status = internal::UnlinkIfThere(fs, paths.Pin(entry.key));
    if (!status.ok()) break;
    folders.insert(paths.Folder(entry.key));
  }
  // Also after an error: removed entries must not come back when the power fails.
  for (const std::string& folder : folders) status.Update(fs.SyncFolder(folder));
  return status;
}

absl::Status RemoveFiles(FileSystem& fs, const std::string& folder, bool (*is_ours)(std::string_view name)) {
  const absl::StatusOr<std::vector<FolderItem>> items = fs.List(folder);
  if (absl::IsNotFound(items.status())) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(items.status());
  for (const FolderItem& item : *items) {
    if (!item.is_file || !is_ours(item.name)) continue;
    KVBLEND_RETURN_IF_ERROR(internal::UnlinkIfThere(fs, absl::StrCat(folder, "/", item.name)));
  }
  return fs.SyncFolder(folder);
}

}  // namespace

absl::StatusOr<CleanupResult> CleanUpFolder(const CleanupOptions& options) {
  FileSystem& fs = *options.fs;
  const DiskPaths paths{options.path};
  // Checked before locking, which makes a file.
  if (const auto entries = fs.List(paths.Entries()); !entries.ok()) {
    if (!absl::IsNotFound(entries.status())) return entries.status();
    return absl::NotFoundError(
        absl::StrCat(paths.root, " is no folder of stored chunks: there is no ", paths.Entries()));
  }
  std::unique_ptr<FileLock> lock;
  if (!options.dry_run) {
    KVBLEND_ASSIGN_OR_RETURN(lock, internal::LockFolder(fs, paths));
  }
  KVBLEND_ASSIGN_OR_RETURN(FolderAudit audit, AuditFolder({.path = options.path,
                                                           .read_sections = false,
                                                           .num_threads = options.num_threads,
                                                           .fs = options.fs,
                                                           .keep_going = options.keep_going,
                                                           .on_progress = options.on_progress}));
  CleanupResult result;
  result.damaged = audit.Count(Finding::kDamaged);
  result.temporary = audit.temporary;
  if (options.quarantine) result.quarantine = audit.quarantine;
  Choose(std::move(audit.entries), options, result);
  if (options.dry_run) return result;
  KVBLEND_RETURN_IF_ERROR(RemoveEntries(fs, paths, options, result.removed));
  KVBLEND_RETURN_IF_ERROR(RemoveFiles(fs, paths.Temporary(), DiskPaths::IsTemporaryName));
  if (options.quarantine)
    KVBLEND_RETURN_IF_ERROR(RemoveFiles(fs, paths.Quarantine(), DiskPaths::IsQuarantineName));
  return result;
}

}  // namespace kvblend::store
