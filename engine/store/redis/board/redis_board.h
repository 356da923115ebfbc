// What replicas leave for each other in the Redis that they share chunks through. docs/store-format.md
// documents the keys.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/store/redis/redis_cluster.h"
#include "engine/store/replica_board.h"

namespace kvblend::store::redis {

/// Everything goes over the connections for writing, reads too: no prompt waits behind it, and who stalls
/// here has the longer time that writes have before their node is left alone. Thread-safe.
class RedisBoard final : public ReplicaBoard {
 public:
  /// `cluster` must outlive it, and be there before its first call.
  RedisBoard(ClusterClient& cluster, int64_t max_value_bytes)
      : cluster_(cluster), max_value_bytes_(max_value_bytes) {}

  absl::Status PutPart(const Place& place, int32_t part, std::string_view bytes, absl::Duration ttl) override;
  absl::Status PutNote(const Place& place, std::string_view bytes, absl::Duration ttl) override;
  absl::StatusOr<bool> Prolong(const Place& place, int32_t num_parts, absl::Duration ttl) override;
  absl::Status Remove(const Place& place, int32_t num_parts) override;
  absl::StatusOr<std::vector<Note>> Notes(std::string_view space, int64_t note_bytes) override;
  absl::StatusOr<std::string> Part(const Place& place, int32_t part, int64_t part_bytes) override;

 private:
  absl::Status Set(const std::string& key, std::string_view bytes, absl::Duration ttl);
  absl::Status Name(const Place& place, absl::Duration ttl);
  /// The string of each key, if it has `bytes` bytes. Errors per key: kNotFound, kDataLoss, kUnavailable.
  std::vector<absl::StatusOr<std::string>> GetAll(const std::vector<std::string>& keys, int64_t bytes);

  ClusterClient& cluster_;
  const int64_t max_value_bytes_;
};

}  // namespace kvblend::store::redis
