#include "engine/store/disk/folder_audit.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "engine/store/disk/disk_paths.h"
#include "engine/store/disk/entry_files.h"
#include "engine/store/disk/folder_files.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/format/host_memory.h"

namespace kvblend::store {
namespace {

using internal::DiskPaths;
using internal::FolderFiles;

/// Memory for layers, aligned for direct reads; grows to the largest.
class LayerBuffer {
 public:
  LayerBuffer() = default;
  ~LayerBuffer() { Free(); }
  LayerBuffer(const LayerBuffer&) = delete;
  LayerBuffer& operator=(const LayerBuffer&) = delete;

  /// Empty when there is no memory.
  absl::Span<std::byte> Get(int64_t size) {
    if (size > size_) {
      Free();
      data_ = Heap().Allocate(size);
      size_ = data_ == nullptr ? 0 : size;
    }
    if (data_ == nullptr) return {};
    return {static_cast<std::byte*>(data_), static_cast<size_t>(size)};
  }

 private:
  void Free() {
    if (data_ != nullptr) Heap().Free(data_, size_);
    data_ = nullptr;
    size_ = 0;
  }

  void* data_ = nullptr;
  int64_t size_ = 0;
};

/// What one entry's file turned out to be.
struct EntryOutcome {
  absl::Status status;
  std::optional<EntryHeader> header;  // when it is sound
  int64_t file_bytes = 0;
  int64_t read_bytes = 0;
};

absl::Status VerifySections(File& file, const EntryHeader& header, int64_t& read_bytes) {
  const int64_t layer_bytes = header.layer_bytes();
  if (layer_bytes == 0) return absl::OkStatus();
  thread_local LayerBuffer buffer;
  const absl::Span<std::byte> bytes = buffer.Get(layer_bytes);
  if (bytes.empty()) return absl::UnavailableError(absl::StrCat("no memory for ", layer_bytes, " bytes"));
  for (int32_t layer = 0; layer < header.address.format.num_layers; ++layer) {
    KVBLEND_RETURN_IF_ERROR(ReadFully(file, header.header_bytes() + layer * layer_bytes, bytes));
    read_bytes += layer_bytes;
    KVBLEND_RETURN_IF_ERROR(VerifyLayer(header, layer, bytes));
  }
  return absl::OkStatus();
}

EntryOutcome AuditEntry(FileSystem& fs, const std::string& path, const ChunkKey& key, bool read_sections) {
  EntryOutcome outcome;
  // Past the page cache, to see what is on the disk.
  const absl::StatusOr<std::unique_ptr<File>> file =
      fs.Open(path, read_sections ? OpenMode::kReadDirect : OpenMode::kRead);
  if (!file.ok()) {
    outcome.status = file.status();
    return outcome;
  }
  if (const absl::StatusOr<int64_t> bytes = (*file)->Size(); bytes.ok()) outcome.file_bytes = *bytes;
  absl::StatusOr<EntryHeader> header = internal::ReadHeader(**file, key);
  outcome.status = header.status();
  if (!header.ok()) return outcome;
  outcome.read_bytes = header->header_bytes();
  if (read_sections) outcome.status = VerifySections(**file, *header, outcome.read_bytes);
  if (outcome.status.ok()) outcome.header = *std::move(header);
  return outcome;
}

class Auditor {
 public:
  explicit Auditor(const AuditOptions& options) : options_(options), fs_(*options.fs), paths_{options.path} {}

  absl::StatusOr<FolderAudit> Run() {
    KVBLEND_ASSIGN_OR_RETURN(const FolderFiles files,
                             internal::ListFolderFiles(fs_, paths_, options_.num_threads, options_.keep_going,
                                                       [](const absl::Status& listed) { return listed; }));
    std::unique_ptr<FileLock> lock;
    if (options_.quarantine) {
      KVBLEND_ASSIGN_OR_RETURN(lock, internal::LockFolder(fs_, paths_));
      KVBLEND_RETURN_IF_ERROR(MakeFolders(fs_, paths_.Quarantine()));
    }
    KVBLEND_ASSIGN_OR_RETURN(const FileTotals quarantine,
                             internal::TotalsOf(fs_, paths_.Quarantine(), DiskPaths::IsQuarantineName));
    KVBLEND_ASSIGN_OR_RETURN(const FileTotals temporary,
                             internal::TotalsOf(fs_, paths_.Temporary(), DiskPaths::IsTemporaryName));
    {
      absl::MutexLock mutex_lock(&mutex_);
      audit_.quarantine = quarantine;
      audit_.temporary = temporary;
      progress_.total_entries = static_cast<int64_t>(files.entries.size());
    }
    KVBLEND_RETURN_IF_ERROR(internal::ForEachInParallel(files.entries.size(), options_.num_threads,
                                                        options_.keep_going,
                                                        [&](size_t i) { return Audit(files.entries[i]); }));
    absl::MutexLock mutex_lock(&mutex_);
    for (const ChunkKey& pin : files.loose_pins) AddFinding(Finding::kLoosePin, paths_.Pin(pin));
    for (const std::string& path : files.foreign) AddFinding(Finding::kForeign, path);
    std::sort(audit_.entries.begin(), audit_.entries.end(),
              [](const AuditedEntry& a, const AuditedEntry& b) { return a.key < b.key; });
    std::sort(audit_.findings.begin(), audit_.findings.end(),
              [](const AuditFinding& a, const AuditFinding& b) { return a.path < b.path; });
    audit_.read_bytes = progress_.read_bytes;
    return std::move(audit_);
  }

 private:
  absl::Status Audit(const FolderFiles::Entry& entry) {
    const std::string path = paths_.Entry(entry.key);
    const EntryOutcome outcome = AuditEntry(fs_, path, entry.key, options_.read_sections);
    bool quarantined = false;
    if (options_.quarantine && absl::IsDataLoss(outcome.status)) {
      KVBLEND_RETURN_IF_ERROR(Quarantine(entry.key));
      quarantined = true;
    }
    absl::MutexLock lock(&mutex_);
    ++progress_.done_entries;
    progress_.read_bytes += outcome.read_bytes;
    if (outcome.header.has_value()) {
      AddEntry(*outcome.header, entry.pinned);
    } else if (!absl::IsNotFound(outcome.status)) {  // not found: evicted meanwhile
      AddFinding(absl::IsDataLoss(outcome.status)        ? Finding::kDamaged
                 : absl::IsUnimplemented(outcome.status) ? Finding::kNewer
                                                         : Finding::kUnreadable,
                 path, Reason(outcome.status, path), outcome.file_bytes, quarantined);
    }
    if (options_.on_progress) options_.on_progress(progress_);
    return absl::OkStatus();
  }

  /// The pin goes last: a pin without an entry is removed at start; a damaged entry that lost its pin would
  /// be unpinned.
  absl::Status Quarantine(const ChunkKey& key) {
    KVBLEND_RETURN_IF_ERROR(fs_.Rename(paths_.Entry(key), paths_.Quarantine(key)));
    KVBLEND_RETURN_IF_ERROR(internal::UnlinkIfThere(fs_, paths_.Pin(key)));
    KVBLEND_RETURN_IF_ERROR(fs_.SyncFolder(paths_.Quarantine()));
    return fs_.SyncFolder(paths_.Folder(key));
  }

  static std::string Reason(const absl::Status& status, const std::string& path) {
    // absl's string_view, which its messages are, is not std::string_view.
    const std::string message(status.message());
    return std::string(absl::StripPrefix(message, absl::StrCat(path, ": ")));
  }

  void AddEntry(const EntryHeader& header, bool pinned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    audit_.entries.push_back({.key = header.address.key,
                              .model_fingerprint = header.address.model_fingerprint,
                              .format = header.address.format,
                              .tenant_namespace = header.address.tenant_namespace,
                              .label = header.label,
                              .num_tokens = header.address.num_tokens,
                              .bytes = header.total_bytes(),
                              .compute_cost_seconds = header.compute_cost_seconds,
                              .created = header.created,
                              .pinned = pinned});
  }

  void AddFinding(Finding finding, const std::string& path, std::string reason = "", int64_t bytes = 0,
                  bool quarantined = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    audit_.findings.push_back({.finding = finding,
                               .path = std::string(absl::StripPrefix(path, absl::StrCat(paths_.root, "/"))),
                               .reason = std::move(reason),
                               .bytes = bytes,
                               .quarantined = quarantined});
  }

  const AuditOptions& options_;
  FileSystem& fs_;
  const DiskPaths paths_;
  absl::Mutex mutex_;
  FolderAudit audit_ ABSL_GUARDED_BY(mutex_);
  AuditProgress progress_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

int64_t FolderAudit::Count(Finding finding) const {
  return std::count_if(findings.begin(), findings.end(),
                       [&](const AuditFinding& found) { return found.finding == finding; });
}

absl::StatusOr<FolderAudit> AuditFolder(const AuditOptions& options) { return Auditor(options).Run(); }

}  // namespace kvblend::store
