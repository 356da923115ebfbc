// Writes and removes the keys of entries in Redis. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/redis/redis_cluster.h"

namespace kvblend::store::redis {

/// The header of an entry is written last and removed first, so that it never stands over sections that are
/// not its own. Thread-safe.
class EntryWriter {
 public:
  /// `cluster` must outlive it. ttl_seconds: 0: for ever.
  EntryWriter(ClusterClient& cluster, int64_t ttl_seconds) : cluster_(cluster), ttl_seconds_(ttl_seconds) {}

  enum class Presence : uint8_t { kNone, kPart, kWhole };
  /// Which of the keys of an entry for `kv` are there. kUnavailable.
  absl::StatusOr<Presence> Find(const ChunkKey& key, const ChunkKv& kv);

  /// What Redis answers of an entry whose header says num_layers.
  struct Holding {
    bool answered = false;
    bool whole = false;                       // all keys are there
    std::optional<absl::Duration> time_left;  // of the header; none: it stays for ever
  };
  /// Per key. Blocks until all are answered, or `deadline`.
  std::vector<Holding> Look(absl::Span<const ChunkKey> keys, int32_t num_layers, absl::Time deadline);

  /// Waits until all of it is written. kResourceExhausted: Redis has no memory. kUnavailable.
  absl::Status Write(const EntryHeader& header, const std::string& header_bytes, const ChunkKv& kv);
  /// Waits until no lookup of any server finds the entry. kUnavailable.
  absl::Status RemoveHeader(const ChunkKey& key);

  /// Waits until every key of the entry has its whole time again. Whether its header is there. kUnavailable.
  absl::StatusOr<bool> Prolong(const ChunkKey& key, int32_t num_layers);

  // Sent, and not waited for.
  void Remove(const ChunkKey& key, int32_t num_layers);
  /// For an entry of which sections are missing. Others may be those of a Put under way, which would then put
  /// its header over what was removed; they are the next Put's to replace, or go when their time is over.
  void RemoveIncomplete(const ChunkKey& key);
  /// Where the header can't be read, so that nobody knows how many layers there are.
  void RemoveAllLayers(const ChunkKey& key);
  /// As Prolong does, for those who can't wait.
  void RefreshTtl(const ChunkKey& key, int32_t num_layers);

 private:
  /// Those that give a key its whole time again, of sections and, as the last, of the header.
  std::vector<std::unique_ptr<Command>> ExpireCommands(const ChunkKey& key, int32_t num_layers) const;
  /// To live for `more_seconds` beyond the TTL.
  std::unique_ptr<Command> SetCommand(const std::string& key, absl::Span<const std::byte> value,
                                      int64_t more_seconds) const;

  ClusterClient& cluster_;
  const int64_t ttl_seconds_;
};

}  // namespace kvblend::store::redis
