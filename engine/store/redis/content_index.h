// Which entries there are of a chunk, whatever their anchors: sorted sets in Redis. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/redis/redis_cluster.h"

namespace kvblend::store::redis {

/// Names entries that may be gone: whoever finds that out takes them out. Thread-safe.
class ContentIndex {
 public:
  static constexpr int32_t kMaxIndexedAnchors = 64;  // per content key

  /// `cluster` must outlive it. ttl_seconds: 0: for ever.
  ContentIndex(ClusterClient& cluster, int64_t ttl_seconds) : cluster_(cluster), ttl_seconds_(ttl_seconds) {}

  /// Whether the index names the entry now.
  bool Add(const ChunkAddress& address);
  // Sent, and not waited for.
  void Remove(const ChunkAddress& address);
  void RefreshTtl(const ContentKey& content_key);

  struct Found {
    std::vector<std::optional<ContentMatch>>
        matches;              // per content key, the best entry whose header is there
    int64_t stale_names = 0;  // of entries that are gone: taken out
  };
  /// `is_erased`: of entries that are to be treated as gone.
  Found Find(absl::Span<const ContentKey> content_keys, absl::Time deadline,
             const std::function<bool(const ChunkKey&)>& is_erased) const;

 private:
  void Remove(const ContentKey& content_key, const std::vector<std::string>& members) const;

  ClusterClient& cluster_;
  const int64_t ttl_seconds_;
};

}  // namespace kvblend::store::redis
