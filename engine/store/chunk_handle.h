// What lookups return: handles that pin entries, and the duty to compute a missing chunk.
// Both types are move-only, refer to the ChunkStore that gave them out, and must be gone before it is.
// One object is used by one thread at a time; different objects by different threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/api/chunk_info.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/lower_tier.h"

namespace kvblend::store {

class ChunkHandle;
struct InsertOptions;

namespace internal {
struct Entry;

/// The store, as handles and reservations see it, which are returned to it.
class Lender {
 public:
  virtual void Return(Entry* entry) = 0;
  virtual absl::StatusOr<ChunkHandle> Commit(const ChunkAddress& address, std::unique_ptr<ChunkKv> kv,
                                             const InsertOptions& options) = 0;
  virtual void Abandon(const ChunkKey& key) = 0;

 protected:
  ~Lender() = default;
};
}  // namespace internal

/// Pins one entry: while the handle lives, the entry is neither evicted nor freed, even when it is erased.
/// A moved-from handle may only be assigned to or destroyed.
class ChunkHandle {
 public:
  /// For the store: takes over one handle that `entry` counts. `reader`: has it.
  ChunkHandle(internal::Lender& lender, internal::Entry* entry, Tier tier, Reader reader)
      : lender_(&lender), entry_(entry), tier_(tier), reader_(reader) {}
  ChunkHandle(ChunkHandle&& other) noexcept;
  ChunkHandle& operator=(ChunkHandle&& other) noexcept;
  ~ChunkHandle();

  const ChunkKey& key() const;
  const Digest& anchor_hash() const;
  const KvFormat& format() const;
  int32_t num_tokens() const;
  int64_t size_bytes() const;  // bytes that the entry counts against the store's budget
  /// Where the lookup found the entry.
  Tier tier() const { return tier_; }

  /// Layers that have not arrived yet.
  int32_t num_missing_layers() const;

  /// Begins to read one layer, unless that has begun already. What others asked for and still waits goes as
  /// early as if it was asked for here. No effect on an entry in host memory.
  /// REQUIRES: 0 <= layer < format().num_layers
  void AskForLayer(int32_t layer) const;

  /// The KV of one layer, ready to be read, valid as long as this handle. For an entry in host memory it
  /// returns at once; for one from a slower tier it waits until the layer has arrived.
  /// kInvalidArgument: no such layer. kDeadlineExceeded: it has not arrived by `deadline`. kDataLoss: it
  /// can't be read, and from now on lookups miss this entry.
  absl::StatusOr<LayerKv> AcquireLayer(int32_t layer, absl::Time deadline = absl::InfiniteFuture()) const;
  /// Whether AcquireLayer has failed, or will.
  bool lost() const;

 private:
  internal::Lender* lender_;
  internal::Entry* entry_;  // null after a move
  Tier tier_;
  Reader reader_;
};

/// The duty to compute a missing chunk. While it lives, others that ask for the chunk get BeingComputed. If
/// it is destroyed without Commit, the next one that asks gets the duty.
class Reservation {
 public:
  /// For the store.
  Reservation(internal::Lender& lender, ChunkAddress address)
      : lender_(&lender), address_(std::move(address)) {}
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation();

  /// Calls ChunkStore::Insert with the reserved address. Afterwards, whatever the outcome, the duty is over,
  /// and only destruction is allowed. kFailedPrecondition: it was over already.
  absl::StatusOr<ChunkHandle> Commit(std::unique_ptr<ChunkKv> kv, const InsertOptions& options);

 private:
  internal::Lender* lender_;  // null when moved from or committed
  ChunkAddress address_;
};

/// Another caller has the duty to compute this chunk. There is no notification when it is there, and no
/// thread waits for it: a caller that works on several prompts in turn asks LookupOrReserve again in the
/// prompt's next turn, and then gets the entry, or the duty if the other caller gave up.
struct BeingComputed {};

/// What LookupOrReserve returns.
using ReserveResult = std::variant<ChunkHandle, Reservation, BeingComputed>;

}  // namespace kvblend::store
