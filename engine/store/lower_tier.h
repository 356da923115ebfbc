// What the chunk store asks of a tier below host memory: a place where entries outlive eviction and, on disk,
// the process. Implemented by engine/store/disk; a tier across the network fits the same calls.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/store/chunk_address.h"
#include "engine/store/chunk_info.h"
#include "engine/store/chunk_kv.h"
#include "engine/store/entry_format.h"

namespace kvblend::store {

/// Which of the reads that wait goes next: prompts in order of arrival, and within one, layer l of all its
/// chunks before layer l + 1.
struct ReadPriority {
  uint64_t prompt = 0;
  int32_t layer = 0;
  friend auto operator<=>(const ReadPriority&, const ReadPriority&) = default;
};

using ReadId = uint64_t;

/// An entry open for reading, whatever becomes of it in its tier meanwhile. Thread-safe; the tier must
/// outlive it.
class LowerTierEntry {
 public:
  virtual ~LowerTierEntry() = default;

  /// Where it is read from: a LowerTier may stand for several.
  virtual Tier tier() const = 0;

  /// Checked: its checksum is right, and it is of the key that was asked for.
  virtual const EntryHeader& header() const = 0;

  /// Reads one layer into `out`: header().layer_bytes() bytes, aligned to ChunkKv::kSectionAlignment, the
  /// caller's again when `done` is called.
  ///
  /// `done` is called exactly once, on a thread of the tier with no lock held: OK when the layer's checksums
  /// matched; kCancelled; kDataLoss or another error when the layer could not be read. After any error the
  /// bytes in `out` mean nothing. When an error is returned instead of an id, `done` is not called.
  virtual absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                           absl::AnyInvocable<void(absl::Status)> done) = 0;

  /// Returns at once; `done` comes with kCancelled unless it is on its way.
  virtual void CancelRead(ReadId id) = 0;
};

/// Thread-safe. Destruction cancels the reads that wait and waits for those that run.
class LowerTier {
 public:
  struct PutOptions {
    std::string label = {};                     // at most 256 bytes
    double compute_cost_seconds = 0;            // finite, >= 0
    absl::Time created = absl::InfinitePast();  // InfinitePast: now
  };

  virtual ~LowerTier() = default;

  /// Stores an entry; it is durable when this returns OK, at once when it is there. Blocks.
  virtual absl::Status Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) = 0;

  /// May block for one small read. kNotFound, kDataLoss, or that the tier can't be read now: all of them are
  /// misses.
  virtual absl::StatusOr<std::shared_ptr<LowerTierEntry>> OpenEntry(const ChunkKey& key) = 0;

  /// An entry of the same chunk whatever its anchor, chosen as by ChunkStore::LookupAnyAnchor.
  virtual std::optional<ChunkInfo> FindAnyAnchor(const ContentKey& content_key) const = 0;
  virtual std::optional<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const = 0;
  virtual bool Contains(const ChunkKey& key) const = 0;
  /// The first `limit` entries after `after` in order of (namespace, key).
  virtual std::vector<ChunkInfo> List(NamespaceFilter filter,
                                      const std::optional<std::pair<std::string, ChunkKey>>& after,
                                      int64_t limit) const = 0;

  /// Whether there was one.
  virtual absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) = 0;
  /// Keeps an entry from being evicted until Unpin or Erase, restarts included; idempotent. kNotFound.
  virtual absl::Status Pin(NamespaceFilter filter, const ChunkKey& key) = 0;
  virtual absl::Status Unpin(NamespaceFilter filter, const ChunkKey& key) = 0;
};

}  // namespace kvblend::store
