// What the disk tier tells about itself: plain data.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/api/stats.h"

namespace kvblend::store {

/// Counts of what is there are as of now; everything under "since start" only grows.
struct DiskTierStats {
  int64_t entries = 0;
  int64_t bytes = 0;  // of all entries' files
  int64_t quota_bytes = 0;
  int64_t pinned_entries = 0;
  int64_t pinned_bytes = 0;
  int64_t quarantined_files = 0;  // in quarantine/ now
  bool disk_full = false;         // the last write was refused for want of space
  bool write_failing = false;     // the last write failed
  bool read_failing = false;      // the last read failed, by the device
  std::string_view reader = "";   // "io_uring" or "threads"

  // When opened.
  int64_t found_entries = 0;
  int64_t removed_temporary_files = 0;
  int64_t foreign_files = 0;        // names that are not ours: left alone
  int64_t unsupported_entries = 0;  // written by a newer version: left alone
  int64_t unreadable_entries = 0;   // the device failed: left alone

  // Since start.
  int64_t puts = 0;  // stored
  int64_t put_bytes = 0;
  int64_t duplicate_puts = 0;
  int64_t put_failures = 0;    // the disk was full or failed
  int64_t put_rejections = 0;  // larger than the quota without what is pinned
  int64_t evictions = 0;
  int64_t evicted_bytes = 0;
  int64_t erased = 0;
  int64_t delete_failures = 0;  // files that could not be removed
  int64_t quarantined = 0;      // damaged entries found, those when opened included
  int64_t vanished = 0;         // entries whose files someone else removed
  int64_t opens = 0;            // entries opened for reading: hits
  int64_t reads = 0;            // layers read and found right
  int64_t read_bytes = 0;
  int64_t read_errors = 0;  // reads that failed, of headers and layers, damage included
  int64_t cancelled_reads = 0;
};

/// The same for metrics and for people, who know no tier by its kind.
TierStats Report(const DiskTierStats& stats);

}  // namespace kvblend::store
