#include "engine/store/disk/disk_tier_stats.h"

namespace kvblend::store {

TierStats Report(const DiskTierStats& stats) {
  TierStats report{.tier = Tier::kDisk,
                   .failing = stats.disk_full || stats.write_failing || stats.read_failing,
                   .values = {}};
  const auto add = [&](TierStat::Kind kind, std::string_view name, std::string_view help, auto value) {
    report.values.push_back({.name = name, .help = help, .kind = kind, .value = static_cast<double>(value)});
  };
  const auto gauge = [&](auto... rest) { add(TierStat::Kind::kGauge, rest...); };
  const auto counter = [&](auto... rest) { add(TierStat::Kind::kCounter, rest...); };
  gauge("entries", "Chunks on disk.", stats.entries);
  gauge("bytes", "Bytes of chunks on disk.", stats.bytes);
  gauge("quota_bytes", "Bytes that chunks may take on disk.", stats.quota_bytes);
  gauge("pinned_entries", "Chunks pinned on disk.", stats.pinned_entries);
  gauge("quarantined_files", "Damaged files set aside.", stats.quarantined_files);
  gauge("full", "1 when the last write found no space.", stats.disk_full);
  gauge("write_failing", "1 when the last write failed.", stats.write_failing);
  gauge("read_failing", "1 when the last read failed.", stats.read_failing);
  counter("puts", "Chunks written to disk.", stats.puts);
  counter("put_bytes", "Bytes of chunks written to disk.", stats.put_bytes);
  counter("put_failures", "Chunks not written because the disk was full or failed.", stats.put_failures);
  counter("put_rejections", "Chunks too large for the quota beside what is pinned.", stats.put_rejections);
  counter("evictions", "Chunks evicted from disk.", stats.evictions);
  counter("evicted_bytes", "Bytes of chunks evicted from disk.", stats.evicted_bytes);
  counter("opens", "Chunks opened for reading.", stats.opens);
  counter("reads", "Layers read and found right.", stats.reads);
  counter("read_bytes", "Bytes of layers read.", stats.read_bytes);
  counter("read_errors", "Reads that failed, damage included.", stats.read_errors);
  counter("quarantined", "Damaged chunks found on disk.", stats.quarantined);
  counter("delete_failures", "Files of chunks that could not be removed.", stats.delete_failures);
  return report;
}

}  // namespace kvblend::store
