// One entry of the Redis tier, open for reading. Private to this folder.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

class RedisTier;

/// Holds nothing in Redis: sections may go while it is open, and are misses then. Thread-safe; the tier must
/// outlive it.
class RedisEntry final : public LowerTierEntry, public std::enable_shared_from_this<RedisEntry> {
 public:
  RedisEntry(RedisTier& tier, EntryHeader header) : tier_(tier), header_(std::move(header)) {}

  Tier tier() const override { return Tier::kRedis; }
  const EntryHeader& header() const override { return header_; }
  bool pinned() const override { return false; }

  /// As LowerTierEntry says. kDataLoss: the entry is damaged or sections are gone; the rest is being removed.
  /// kUnavailable, kDeadlineExceeded: the node fails. kInvalidArgument (no such layer, `out` of another size
  /// or alignment), kUnavailable and kResourceExhausted (too many reads wait) are returned.
  absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                   absl::AnyInvocable<void(absl::Status)> done) override;
  void CancelRead(ReadId id) override;

  /// Whether this is the first time.
  bool MarkLost() { return !lost_.exchange(true, std::memory_order_relaxed); }

 private:
  friend class RedisTier;
  RedisTier& tier_;
  const EntryHeader header_;
  std::atomic<bool> lost_{false};
};

}  // namespace kvblend::store
