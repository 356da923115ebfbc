// Reading entries of Redis: their headers, several at once, and the layers of one. Private to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/lower_tier.h"
#include "engine/store/redis/redis_cluster.h"

namespace kvblend::store::redis {

/// What Redis answers when an entry is asked for.
struct FoundHeader {
  /// kNotFound. kDataLoss: damaged. kUnimplemented: by a newer version. kUnavailable, kDeadlineExceeded: no
  /// answer.
  absl::StatusOr<EntryHeader> header;
  bool without_sections = false;            // where that is the damage: K or V is not there
  std::optional<absl::Duration> time_left;  // none: it stays for ever
};

/// Per key. Blocks until all are answered, or `deadline`.
std::vector<FoundHeader> ReadHeaders(ClusterClient& cluster, absl::Span<const ChunkKey> keys,
                                     absl::Time deadline);

/// A header as it stands in Redis, for operators. kNotFound. kDataLoss: damaged, or of another chunk.
/// kUnimplemented: by a newer version. kUnavailable: no answer.
absl::StatusOr<EntryHeader> ReadHeader(ClusterClient& cluster, Lane lane, const ChunkKey& key,
                                       absl::Time deadline);

/// Holds nothing in Redis: sections may go while it is open, and are misses then. Thread-safe.
class RedisEntry final : public LowerTierEntry, public std::enable_shared_from_this<RedisEntry> {
 public:
  struct Outcome {
    absl::Status status;
    int64_t bytes = 0;
    absl::Duration waited = absl::ZeroDuration();
    bool is_lost = false;          // damaged or gone, for the first time: of an entry's many layers one tells
    bool without_section = false;  // lost by that
  };
  /// Told the outcome of every read before the reader is. Thread-safe.
  using OnRead = std::function<void(const EntryHeader& header, const Outcome& outcome)>;

  /// `cluster`, and what `on_read` uses, must outlive it.
  RedisEntry(ClusterClient& cluster, EntryHeader header, OnRead on_read)
      : cluster_(cluster), header_(std::move(header)), on_read_(std::move(on_read)) {}

  Tier tier() const override { return Tier::kRedis; }
  const EntryHeader& header() const override { return header_; }
  bool pinned() const override { return false; }

  /// As LowerTierEntry says. kDataLoss: the entry is damaged or sections are gone, and is being removed.
  /// kUnavailable, kDeadlineExceeded: the node fails. What CheckRead says is returned; in either way,
  /// kUnavailable and kResourceExhausted (too many reads wait).
  absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                   absl::AnyInvocable<void(absl::Status)> done) override;
  void RaiseRead(ReadId id, ReadPriority priority) override {
    cluster_.Raise(id, {.bulk = true, .read = priority});
  }
  void CancelRead(ReadId id) override { cluster_.Cancel(id); }

 private:
  Outcome Check(int32_t layer, absl::Span<const std::byte> bytes, const absl::StatusOr<Reply>& reply);

  ClusterClient& cluster_;
  const EntryHeader header_;
  const OnRead on_read_;
  std::atomic<bool> lost_{false};
};

}  // namespace kvblend::store::redis
