// What the disk tier counts: plain data.
#pragma once

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
  int64_t quarantined_files = 0;
  bool disk_full = false;
  bool write_failing = false;
  bool read_failing = false;
  std::string_view reader = "";  // "io_uring" or "threads"

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
  int64_t erased = 0;
  int64_t delete_failures = 0;
  int64_t quarantined = 0;  // those found when opened included
  int64_t vanished = 0;     // entries whose files someone else removed
  int64_t opens = 0;
  int64_t reads = 0;
  int64_t read_bytes = 0;
  int64_t read_errors = 0;  // of headers and layers
};

inline constexpr TierFigure<DiskTierStats> kDiskFigures[] = {
    {&DiskTierStats::entries, TierStat::Kind::kGauge, "entries", "Chunks on disk."},
    {&DiskTierStats::bytes, TierStat::Kind::kGauge, "bytes", "Bytes of chunks on disk."},
    {&DiskTierStats::quota_bytes, TierStat::Kind::kGauge, "quota_bytes",
     "Bytes that chunks may take on disk."},
    {&DiskTierStats::pinned_entries, TierStat::Kind::kGauge, "pinned_entries", "Chunks pinned on disk."},
    {&DiskTierStats::quarantined_files, TierStat::Kind::kGauge, "quarantined_files",
     "Damaged files set aside."},
    {&DiskTierStats::disk_full, TierStat::Kind::kGauge, "full", "1 when the last write found no space."},
    {&DiskTierStats::write_failing, TierStat::Kind::kGauge, "write_failing", "1 when the last write failed."},
    {&DiskTierStats::read_failing, TierStat::Kind::kGauge, "read_failing", "1 when the last read failed."},
    {&DiskTierStats::puts, TierStat::Kind::kCounter, "puts", "Chunks written to disk."},
    {&DiskTierStats::put_bytes, TierStat::Kind::kCounter, "put_bytes", "Bytes of chunks written to disk."},
    {&DiskTierStats::put_failures, TierStat::Kind::kCounter, "put_failures",
     "Chunks not written because the disk was full or failed."},
    {&DiskTierStats::put_rejections, TierStat::Kind::kCounter, "put_rejections",
     "Chunks too large for the quota beside what is pinned."},
    {&DiskTierStats::evictions, TierStat::Kind::kCounter, "evictions", "Chunks evicted from disk."},
    {&DiskTierStats::evicted_bytes, TierStat::Kind::kCounter, "evicted_bytes",
     "Bytes of chunks evicted from disk."},
    {&DiskTierStats::opens, TierStat::Kind::kCounter, "opens", "Chunks opened for reading."},
    {&DiskTierStats::reads, TierStat::Kind::kCounter, "reads", "Layers read and found right."},
    {&DiskTierStats::read_bytes, TierStat::Kind::kCounter, "read_bytes", "Bytes of layers read."},
    {&DiskTierStats::read_errors, TierStat::Kind::kCounter, "read_errors",
     "Reads that failed, damage included."},
    {&DiskTierStats::quarantined, TierStat::Kind::kCounter, "quarantined", "Damaged chunks found on disk."},
    {&DiskTierStats::delete_failures, TierStat::Kind::kCounter, "delete_failures",
     "Files of chunks that could not be removed."},
};

}  // namespace kvblend::store
