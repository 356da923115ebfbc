// The interface of a tier below host memory: a place where entries survive eviction, and perhaps the process.
// Implemented by engine/store/disk and engine/store/redis.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
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
#include "engine/api/chunk_info.h"
#include "engine/api/stats.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/replica_board.h"

namespace kvblend::store {

/// What something is read for; the reads of the first go first.
enum class ReadFor : uint8_t {
  kPrompt,        // it is computed, and waits for its chunks
  kQueuedPrompt,  // its turn will come
  kPut,           // a chunk that is there counts as stored once all of it has been read
  kPrefetch,      // a client says that prompts will come
  kNobody,        // the rest of what somebody has read in part, and what goes to a tier below
};

/// Who reads: of the same purpose, the first to come goes first.
struct Reader {
  ReadFor purpose = ReadFor::kPrompt;
  uint64_t turn = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): there is no literal 0
  friend auto operator<=>(const Reader&, const Reader&) = default;
};

/// Which of the reads that wait goes next, the smallest: within one reader, layer l of all its chunks before
/// layer l + 1.
struct ReadPriority {
  Reader reader = {};
  int32_t layer = 0;
  // NOLINTNEXTLINE(modernize-use-nullptr): there is no literal 0
  friend auto operator<=>(const ReadPriority&, const ReadPriority&) = default;
};

using ReadId = uint64_t;

/// An entry open for reading. It can be read even if its tier evicts or erases it meanwhile. Thread-safe; the
/// tier must outlive it.
class LowerTierEntry {
 public:
  virtual ~LowerTierEntry() = default;

  virtual Tier tier() const = 0;

  /// Checked: its checksum is right, and it is of the key that was asked for.
  virtual const EntryHeader& header() const = 0;

  /// Whether it was pinned when it was opened.
  virtual bool pinned() const = 0;

  /// Reads one layer into `out`: header().layer_bytes() bytes, aligned to ChunkKv::kSectionAlignment. They
  /// must stay until `done` is called.
  ///
  /// `done` is called exactly once, on a thread of the tier with no lock held: OK when the layer's checksums
  /// matched; kCancelled; kResourceExhausted where the tier had no room for the read, which says nothing of
  /// the entry; kDataLoss or another error when the layer could not be read. After any error the bytes in
  /// `out` mean nothing. When an error is returned instead of an id, `done` is not called. Where too many
  /// reads wait, the one of the last priority has no room, be it this one or another.
  virtual absl::StatusOr<ReadId> ReadLayer(int32_t layer, absl::Span<std::byte> out, ReadPriority priority,
                                           absl::AnyInvocable<void(absl::Status)> done) = 0;

  /// Moves a read that waits to where a smaller priority puts it; no effect on others.
  virtual void RaiseRead(ReadId id, ReadPriority priority) = 0;

  /// Returns at once; `done` comes with kCancelled unless it is on its way.
  virtual void CancelRead(ReadId id) = 0;

 protected:
  /// Whether ReadLayer may be asked for this; kInvalidArgument naming what is wrong.
  absl::Status CheckRead(int32_t layer, absl::Span<const std::byte> out) const;
};

/// What a server can use of what a tier has.
struct UsableEntries {
  Digest model_fingerprint{};
  KvFormat format;
  int64_t max_kv_bytes = 0;  // of one entry: more does not fit into memory
};

/// Thread-safe. Destruction cancels the reads that wait and waits for those that run.
class LowerTier {
 public:
  struct PutOptions {
    std::string label = {};                     // at most 256 bytes
    double compute_cost_seconds = 0;            // finite, >= 0
    int64_t frequency = 1;                      // how often it was asked for before, >= 1; for eviction
    absl::Time created = absl::InfinitePast();  // InfinitePast: now
  };

  virtual ~LowerTier() = default;

  virtual Tier tier() const = 0;
  /// Whether entries stay until they are erased or room is needed. In other tiers they may also go when
  /// another machine restarts, or after some time.
  virtual bool durable() const = 0;

  /// Stores an entry, whole or not at all; when it is already there, its lifetime begins anew. Blocks.
  /// kInvalidArgument: as CheckStorable and EncodeEntryHeader say.
  virtual absl::Status Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) = 0;

  /// Opens entries, in the order of `keys`. May block for a small read of each, and where time matters to the
  /// tier, until `deadline` at most. kNotFound, kDataLoss, or that the tier can't be read now: all of them
  /// are misses.
  virtual std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> OpenEntries(
      absl::Span<const ChunkKey> keys, absl::Time deadline) = 0;

  /// For each content key, opens the best match. Blocks as OpenEntries does.
  virtual std::vector<std::optional<ContentMatch>> FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                                 absl::Time deadline) const = 0;

  /// Whether the entry is there already, so that Put would store nothing new. Answers at once from what this
  /// process knows: for a tier across the network the answer may be wrong either way.
  virtual bool Contains(const ChunkKey& key) const = 0;
  /// Looks whether an entry that Contains tells of is there still, for whoever relies on it and does not read
  /// it; what is gone is not contained any more. May block as OpenEntries does. A tier that need not look
  /// does nothing.
  virtual void ForgetIfGone(const ChunkKey& /*key*/) {}
  /// For each key, whether Put would do something: store the entry, or prolong one that has less than half of
  /// its lifetime left. Asks, where Contains does not: may block as OpenEntries does. False where the tier
  /// does not answer. `format`: of the entries.
  virtual std::vector<bool> Lack(absl::Span<const ChunkKey> keys, const KvFormat& format);
  virtual std::optional<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const = 0;
  /// Stat of each, in the order of `keys`; a tier across the network asks for many at once.
  virtual std::vector<std::optional<ChunkInfo>> StatAll(NamespaceFilter filter,
                                                        absl::Span<const ChunkKey> keys) const;
  /// The first `limit` entries after `after`; none where they can't be listed.
  virtual std::vector<ChunkInfo> List(NamespaceFilter filter, const std::optional<ListPlace>& after,
                                      int64_t limit) const = 0;

  /// How long an entry stays after the last use that the tier knows of; InfiniteDuration: uses don't matter.
  virtual absl::Duration lifetime() const { return absl::InfiniteDuration(); }
  /// An entry, if it is there, was used from a tier above: its lifetime begins anew. May block as Put does.
  virtual void NoteUse(const ChunkAddress& /*address*/) {}

  /// Erases an entry; returns whether there was one.
  virtual absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) = 0;
  /// Erase of each, in the order of `keys`; a tier that waits for each erasure waits for many at once.
  virtual std::vector<absl::StatusOr<bool>> EraseAll(NamespaceFilter filter, absl::Span<const ChunkKey> keys);
  /// Pins or unpins an entry. Pinned entries are never evicted, even after a restart; idempotent. kNotFound:
  /// no such entry, or the tier cannot pin.
  virtual absl::Status SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) = 0;

  /// What else a tier of this server's own has, it leaves out from all of the above, but for Erase, and gives
  /// up first. No effect in tiers that others share. Once, before use.
  virtual void SetUsable(const UsableEntries& /*usable*/) {}

  /// As ChunkCatalog::LimitNamespaces; no effect in tiers that do not count namespaces.
  virtual void LimitNamespaces(const std::map<std::string, int64_t>& /*bytes*/) {}

  /// As ChunkCatalog::RoomOf, of this tier; none where it does not count namespaces.
  virtual std::optional<int64_t> RoomOf(const std::string& /*tenant_namespace*/) const {
    return std::nullopt;
  }

  /// Its figures, for metrics and clients.
  virtual TierStats Report() const = 0;

  /// The board on which servers exchange messages, owned by the tier; null: it has none.
  virtual ReplicaBoard* replica_board() { return nullptr; }

  /// Called with an entry that is being evicted though it was asked for more than once, while it can still be
  /// read; `frequency` as PutOptions means it. Any thread of the tier, no lock held. Set once, before use.
  using EvictionListener = std::function<void(std::shared_ptr<LowerTierEntry> entry, int64_t frequency)>;
  // NOLINTNEXTLINE(performance-unnecessary-value-param): tiers that evict keep it
  virtual void SetEvictionListener(EvictionListener /*listener*/) {}

 protected:
  /// The header of what is put. REQUIRES: CheckStorable says OK.
  static EntryHeader HeaderOf(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options,
                              absl::Time now);
};

}  // namespace kvblend::store
