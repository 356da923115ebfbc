// Looking at a disk tier's folder without opening it as a tier: what it holds, and whether all of it is
// sound. For people and scripts; a server finds damage by itself, when it reads.
//
// Files under their final names never change, they only come and go. So looking is safe beside a running
// server: what vanishes meanwhile is left out, and what is being written is seen as temporary files. Moving
// files to quarantine is not, and takes the folder's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/store/disk/file_system.h"
#include "engine/store/format/chunk_address.h"

namespace kvblend::store {

/// What the header of a sound entry says.
struct AuditedEntry {
  ChunkKey key;
  Digest model_fingerprint{};
  KvFormat format;
  std::string tenant_namespace;
  std::string label;
  int32_t num_tokens = 0;
  int64_t bytes = 0;  // of the file
  double compute_cost_seconds = 0;
  absl::Time created;
  bool pinned = false;
};

enum class Finding : uint8_t {
  kDamaged,     // torn, flipped, truncated, or of another chunk than its name says
  kUnreadable,  // the system failed to read it: it may be sound
  kNewer,       // of a version or format that this build does not know
  kForeign,     // no name of ours
  kLoosePin,    // the pin of an entry that is not there; the next server removes it
};

struct AuditFinding {
  Finding finding = Finding::kDamaged;
  std::string path;    // below the folder, such as "entries/ab/cd/abcd...kvb1"
  std::string reason;  // empty for foreign files and pins
  int64_t bytes = 0;   // of the file; 0 where that is not known
  bool quarantined = false;
};

/// Files whose contents nobody looks at.
struct FileTotals {
  int64_t files = 0;
  int64_t bytes = 0;
};

struct FolderAudit {
  std::vector<AuditedEntry> entries;   // the sound ones, by key
  std::vector<AuditFinding> findings;  // by path
  FileTotals quarantine;               // before this audit
  FileTotals temporary;                // being written, or left by a server that was killed
  int64_t read_bytes = 0;

  int64_t Count(Finding finding) const;
};

struct AuditProgress {
  int64_t done_entries = 0;
  int64_t total_entries = 0;
  int64_t read_bytes = 0;
};

struct AuditOptions {
  std::string path;
  bool read_sections = true;  // false: headers only
  bool quarantine = false;    // move damaged entries there
  int32_t num_threads = 4;
  FileSystem* fs = &PosixFileSystem();                         // must outlive the call
  std::function<bool()> keep_going = [] { return true; };      // any thread
  std::function<void(const AuditProgress&)> on_progress = {};  // any thread, one call at a time
};

/// kNotFound: the folder is none of a disk tier. kFailedPrecondition: a server has the folder, and
/// `quarantine` was asked for; names both. kCancelled: keep_going said so. Otherwise what the system says of
/// a folder that cannot be listed, or of a file that cannot be moved. Damage is no error.
absl::StatusOr<FolderAudit> AuditFolder(const AuditOptions& options);

}  // namespace kvblend::store
