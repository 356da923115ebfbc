// Making room in a disk tier's folder while no server has it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/disk/folder_audit.h"
#include "engine/store/format/kv_format.h"

namespace kvblend::store {

struct CleanupOptions {
  std::string path;

  // Which entries go: those that meet every condition given here; none when none is.
  std::optional<absl::Time> created_before;
  std::optional<Digest> model;                  // of this model
  std::vector<Digest> other_models_than;        // of any model but these; empty: of all
  std::optional<kernels::KvEncoding> encoding;  // stored in this format
  /// Then those that save the least computing per byte, among equals the oldest, until the rest takes no
  /// more.
  std::optional<int64_t> max_bytes;

  bool pinned = false;      // pinned entries go as the others do; false: they stay
  bool quarantine = false;  // also what is in quarantine
  bool dry_run = false;     // only tell; takes no lock
  int32_t num_threads = 4;  // for reading headers
  FileSystem* fs = &PosixFileSystem();
  std::function<bool()> keep_going = [] { return true; };
  std::function<void(const AuditProgress&)> on_progress = {};  // while headers are read
};

struct CleanupResult {
  std::vector<AuditedEntry> removed;  // by key
  int64_t removed_bytes = 0;
  int64_t kept_entries = 0;
  int64_t kept_bytes = 0;
  int64_t kept_pinned = 0;  // of those kept, the ones that would have gone were they not pinned
  FileTotals quarantine;    // removed from there
  FileTotals temporary;     // removed: left by a server that was killed
  int64_t damaged = 0;      // not looked at further: see AuditFolder
};

/// Damaged, foreign and newer files are left alone, wherever they lie. Temporary files,
/// which are nobody's while no server runs, go always.
/// Errors as of AuditFolder, but that the lock is taken unless dry_run; what was removed before an error
/// stays removed.
absl::StatusOr<CleanupResult> CleanUpFolder(const CleanupOptions& options);

}  // namespace kvblend::store
