// What lookups give out: handles that pin entries, and the two sides of computing a missing chunk only once.
// All three types are move-only, refer to the ChunkStore that gave them out, and must be gone before it is.
// One object is used by one thread at a time; different objects by different threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/chunk_info.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"

namespace kvblend::store {

class ChunkStore;
struct InsertOptions;
namespace internal {
struct Entry;
struct Waiter;
}  // namespace internal

/// Keeps one entry's bytes in place: while it lives the entry is neither evicted nor freed, even when erased.
/// A moved-from handle may only be assigned to or destroyed.
class ChunkHandle {
 public:
  ChunkHandle(ChunkHandle&& other) noexcept;
  ChunkHandle& operator=(ChunkHandle&& other) noexcept;
  ~ChunkHandle();

  const ChunkKey& key() const;
  const ContentKey& content_key() const;
  const Digest& anchor_hash() const;
  const KvFormat& format() const;
  int32_t num_tokens() const;
  int64_t size_bytes() const;  // what its entry counts against the store's budget
  /// Where the lookup found the entry.
  Tier tier() const { return tier_; }

  /// Layers that have not arrived yet.
  int32_t num_missing_layers() const;

  /// The KV of one layer, ready to be read, valid as long as this handle. At once in host memory; an entry of
  /// a slower tier waits here until the layer has arrived.
  /// kInvalidArgument: no such layer. kDeadlineExceeded: it has not arrived by `deadline`. kDataLoss: it
  /// can't be read, and from now on lookups miss this entry.
  absl::StatusOr<LayerKv> AcquireLayer(int32_t layer, absl::Time deadline = absl::InfiniteFuture()) const;
  /// AcquireLayer has failed, or will.
  bool lost() const;

 private:
  friend class ChunkStore;
  friend class Pending;
  ChunkHandle(ChunkStore* store, internal::Entry* entry, Tier tier = Tier::kHostMemory)
      : store_(store), entry_(entry), tier_(tier) {}

  ChunkStore* store_;
  internal::Entry* entry_;  // null after a move
  Tier tier_;
};

/// The holder is the one who computes this chunk; others who ask for it wait. Going without Commit hands the
/// duty to the caller who has waited longest, if there is one.
class Reservation {
 public:
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  const ChunkAddress& address() const { return address_; }

  /// ChunkStore::Insert under the reserved address. On success everyone who waits gets a handle too; on error
  /// the duty passes on as if the reservation had been dropped. Afterwards only destruction is allowed.
  absl::StatusOr<ChunkHandle> Commit(std::unique_ptr<ChunkKv> kv, const InsertOptions& options);

 private:
  friend class ChunkStore;
  friend class Pending;
  Reservation(ChunkStore* store, ChunkAddress address) : store_(store), address_(std::move(address)) {}

  ChunkStore* store_;  // null when moved from or committed
  ChunkAddress address_;
};

/// Someone else computes this chunk. Dropping it stops waiting.
class Pending {
 public:
  /// The entry, or the duty to compute it, because the one before gave up.
  using Outcome = std::variant<ChunkHandle, Reservation>;

  Pending(Pending&& other) noexcept;
  Pending& operator=(Pending&& other) noexcept;
  ~Pending();

  /// Waits until there is an outcome and takes it. kDeadlineExceeded when there is none by then: one may wait
  /// again (absl::InfinitePast() asks without waiting). kFailedPrecondition once the outcome was taken.
  absl::StatusOr<Outcome> Wait(absl::Time deadline);

  /// Calls `ready` once, as soon as Wait would not block: now, or later on the thread that brings the outcome
  /// about, with no lock held. Replaces an earlier callback. Destroying this object takes the callback back,
  /// but one that is just about to run still runs: it should own what it touches. REQUIRES: the outcome was
  /// not taken.
  void NotifyWhenReady(absl::AnyInvocable<void()> ready);

 private:
  friend class ChunkStore;
  Pending(ChunkStore* store, ChunkAddress address, std::shared_ptr<internal::Waiter> waiter);

  ChunkStore* store_;
  ChunkAddress address_;
  std::shared_ptr<internal::Waiter> waiter_;  // null when moved from or taken
};

/// LookupOrReserve's answer.
using ReserveResult = std::variant<ChunkHandle, Reservation, Pending>;

}  // namespace kvblend::store
