// What this process knows of keys elsewhere, bounded and for a while. Private to this folder.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "engine/api/chunk_key.h"

namespace kvblend::store::redis {

/// Keys that are there, each until a time. Not thread-safe.
class KnownKeys {
 public:
  explicit KnownKeys(size_t max_keys) : max_keys_(max_keys) {}

  void Insert(const ChunkKey& key, absl::Time until);
  void Erase(const ChunkKey& key) { until_.erase(key); }
  bool Contains(const ChunkKey& key, absl::Time now) const {
    const auto found = until_.find(key);
    return found != until_.end() && found->second > now;
  }
  size_t size() const { return until_.size(); }

 private:
  const size_t max_keys_;
  absl::flat_hash_map<ChunkKey, absl::Time> until_;
  std::deque<ChunkKey> order_;  // of insertion; may name keys twice, or ones that are gone
};

/// Keys that were to be erased, but could not be: misses, until they can. Not thread-safe.
class PendingErasures {
 public:
  explicit PendingErasures(size_t max_keys) : max_keys_(max_keys) {}

  /// `tenant_namespace`: only when the entry is of this one.
  void Insert(const ChunkKey& key, std::optional<std::string> tenant_namespace);
  void Erase(const ChunkKey& key) { keys_.erase(key); }
  bool Contains(const ChunkKey& key) const { return keys_.contains(key); }
  bool IsOf(const ChunkKey& key, const std::string& tenant_namespace) const;

 private:
  const size_t max_keys_;
  absl::flat_hash_map<ChunkKey, std::optional<std::string>> keys_;
  std::deque<ChunkKey> order_;
};

}  // namespace kvblend::store::redis
