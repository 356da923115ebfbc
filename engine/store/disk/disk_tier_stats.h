// What the disk tier counts: plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "engine/store/tier_figures.h"

namespace kvblend::store {

/// kDiskFigures says what the exported ones mean.
struct DiskTierStats {
  // Now.
  int64_t entries = 0;
  int64_t bytes = 0;
  int64_t quota_bytes = 0;
  int64_t pinned_entries = 0;
  int64_t pinned_bytes = 0;
  int64_t unusable_entries = 0;  // not among `entries` or the pinned ones
  int64_t unusable_bytes = 0;    // of `bytes`
  int64_t quarantined_files = 0;
  bool disk_full = false;
  bool write_failing = false;
  bool read_failing = false;
  std::string_view reader;  // "io_uring" or "threads"

  // When opened.
  int64_t found_entries = 0;
  int64_t removed_temporary_files = 0;
  int64_t foreign_files = 0;        // names that are not ours: left alone
  int64_t unsupported_entries = 0;  // written by a newer version: left alone
  int64_t unreadable_entries = 0;   // the device failed: left alone

  // Since start.
  int64_t puts = 0;
  int64_t put_bytes = 0;
  int64_t duplicate_puts = 0;
  int64_t put_failures = 0;
  int64_t put_rejections = 0;
  int64_t evictions = 0;
  int64_t evicted_bytes = 0;
  int64_t evictions_for_space = 0;  // of `evictions`: the file system ran short, not the quota
  int64_t erased = 0;
  int64_t delete_failures = 0;
  int64_t quarantined = 0;  // those found when opened included
  int64_t vanished = 0;     // entries whose files someone else removed
  int64_t opens = 0;
  int64_t reads = 0;
  int64_t read_bytes = 0;
  int64_t read_errors = 0;  // of headers and layers
};

inline constexpr auto kDiskFigures = [] {
  using S = DiskTierStats;
  constexpr auto kGauge = TierStat::Kind::kGauge;
  return std::to_array<TierFigure<S>>({
      {&S::entries, "entries", "Chunks on disk.", kGauge},
      {&S::bytes, "bytes", "Bytes of chunks on disk, with those whose files should be gone but are not.",
       kGauge},
      {&S::quota_bytes, "quota_bytes", "Bytes that chunks may take on disk.", kGauge},
      {&S::pinned_entries, "pinned_entries", "Chunks pinned on disk.", kGauge},
      {&S::unusable_entries, "unusable_entries",
       "Chunks on disk of another model or format, or too large for --chunk-store-bytes; not in entries.",
       kGauge},
      {&S::unusable_bytes, "unusable_bytes", "Bytes of these, which are in bytes as well.", kGauge},
      {&S::quarantined_files, "quarantined_files", "Damaged files set aside.", kGauge},
      {&S::disk_full, "full", "1 when the last write found no space.", kGauge},
      {&S::write_failing, "write_failing", "1 when the last write failed.", kGauge},
      {&S::read_failing, "read_failing", "1 when the last read failed.", kGauge},
      {&S::puts, "puts", "Chunks written to disk."},
      {&S::put_bytes, "put_bytes", "Bytes of chunks written to disk."},
      {&S::put_failures, "put_failures", "Chunks not written because the disk was full or failed."},
      {&S::put_rejections, "put_rejections", "Chunks too large for the quota beside what is pinned."},
      {&S::evictions, "evictions", "Chunks evicted from disk."},
      {&S::evicted_bytes, "evicted_bytes", "Bytes of chunks evicted from disk."},
      {&S::evictions_for_space, "evictions_for_space",
       "Chunks evicted because the file system ran short of space; evictions_total has them too."},
      {&S::erased, "erased", "Chunks removed from disk on request."},
      {&S::vanished, "vanished", "Chunks whose files somebody else had removed."},
      {&S::opens, "opens", "Chunks opened for reading."},
      {&S::reads, "reads", "Layers read and found right."},
      {&S::read_bytes, "read_bytes", "Bytes of layers read."},
      {&S::read_errors, "read_errors", "Reads that failed, damage included."},
      {&S::quarantined, "quarantined", "Damaged chunks found on disk."},
      {&S::delete_failures, "delete_failures", "Attempts to remove a chunk's file that failed."},
  });
}();

}  // namespace kvblend::store
