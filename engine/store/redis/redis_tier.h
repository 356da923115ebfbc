// Chunks in a Redis Cluster, or one Redis server, shared by all servers that use it.
//
//   auto tier = RedisTier::Create({.nodes = {{"redis-0", 6379}, {"redis-1", 6379}}});
//   (*tier)->Put(address, *kv, {});
//   auto entries = (*tier)->OpenEntries(keys, deadline);
//
// An entry is a kvb1 header and its sections, each the value of a key of its own, all with one hash tag
// (docs/store-format.md). The header is written last and removed first, so an entry is there whole or not at
// all; what an eviction or a hostile writer leaves of it is found out by the header's checksums before it is
// used, removed, and a miss.
//
// Never in the way: nobody waits for a connection; lookups wait for answers at most for the budget, layers
// for progress as long; a node that made somebody wait that long is left alone until a probe in the
// background has found it working again. Redis down, slow or full costs hits, and nothing else.
//
// Nothing is pinned or listed here: entries go by time and by Redis's own eviction, and belong to all
// servers.
//
// Threads: every method may be called from any thread. The tier must outlive the entries it gave out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/steady_time.h"
#include "engine/api/chunk_info.h"
#include "engine/store/format/chunk_address.h"
#include "engine/store/format/chunk_kv.h"
#include "engine/store/format/entry_format.h"
#include "engine/store/lower_tier.h"
#include "engine/store/redis/board/redis_board.h"
#include "engine/store/redis/content_index.h"
#include "engine/store/redis/entry_writer.h"
#include "engine/store/redis/known_keys.h"
#include "engine/store/redis/redis_cluster.h"
#include "engine/store/redis/redis_entry.h"
#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/redis_tier_stats.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store {

class RedisTier final : public LowerTier {
 public:
  struct Options {
    std::vector<redis::Endpoint> nodes;  // at least one of the cluster; it tells of the others
    std::string user = {};               // of an ACL; empty: the default user
    std::string password = {};           // empty: none is asked for
    std::optional<redis::TlsOptions> tls = std::nullopt;
    absl::Duration ttl = absl::Hours(24);  // since the last use, about; whole seconds; 0: for ever
    /// What Redis may cost a prompt: how long lookups wait for answers, and layers for progress.
    absl::Duration budget = absl::Milliseconds(50);
    int64_t max_value_bytes = int64_t{64} << 20;  // chunks with a larger section are not stored
    int32_t connections_per_node = 2;             // for reading, besides one for writing
    /// Create waits at most that long for the nodes to answer; they need not.
    absl::Duration connect_timeout = absl::Seconds(1);
    absl::Duration write_timeout = absl::Seconds(2);         // without progress
    absl::Duration ping_interval = absl::Seconds(5);         // of idle connections
    absl::Duration min_refresh_interval = absl::Seconds(1);  // of what is known of the cluster
    /// Between two looks (real time) whether what could not be erased can be now; InfiniteDuration: never.
    absl::Duration erasure_retry_interval = absl::Seconds(1);
    redis::CircuitBreaker::Options breaker = {};
    std::function<std::unique_ptr<redis::Transport>()> make_transport = nullptr;  // null: TCP or TLS
    // Thread-safe; may not call back into the tier.
    std::function<absl::Time()> now = SteadyNow;
    std::function<absl::Time()> date = absl::Now;  // of what is stored
  };

  /// kInvalidArgument naming the option. That no node answers is no error.
  static absl::StatusOr<std::unique_ptr<RedisTier>> Create(Options options);
  /// Reads that wait are cancelled, those that run are waited for. REQUIRES: no other call is under way.
  ~RedisTier() override;

  Tier tier() const override { return Tier::kRedis; }
  bool durable() const override { return false; }

  // --- data path ------------------------------------------------------------------------------------------

  /// Stores a chunk; when all of it is there, it has its whole time again. On error a lookup finds nothing of
  /// it, unless it was there already, or the last answer was lost on its way: then all.
  /// kInvalidArgument: `kv` isn't of the address's shape, a bad cost or too long a label. kResourceExhausted:
  /// a section is larger than max_value_bytes, or Redis has no memory. kUnavailable: Redis does not work.
  absl::Status Put(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options) override;

  /// Blocks until all are answered, or min(deadline, budget). kNotFound. kDataLoss: damaged, and now removed.
  /// kUnimplemented: by a newer version. kUnavailable, kDeadlineExceeded: no answer.
  std::vector<absl::StatusOr<std::shared_ptr<LowerTierEntry>>> OpenEntries(absl::Span<const ChunkKey> keys,
                                                                           absl::Time deadline) override;
  std::vector<std::optional<ContentMatch>> FindAnyAnchor(absl::Span<const ContentKey> content_keys,
                                                         absl::Time deadline) const override;

  // --- for operators, and placement -----------------------------------------------------------------------

  /// What this process has found or put there in the last minutes, since when its node has not failed and no
  /// such entry was missed; asks nobody.
  bool Contains(const ChunkKey& key) const override;
  std::vector<bool> Lack(absl::Span<const ChunkKey> keys, const KvFormat& format) override;
  std::optional<ChunkInfo> Stat(NamespaceFilter filter, const ChunkKey& key) const override;
  std::vector<std::optional<ChunkInfo>> StatAll(NamespaceFilter filter,
                                                absl::Span<const ChunkKey> keys) const override;
  absl::Duration lifetime() const override {
    return ttl_seconds_ > 0 ? absl::Seconds(ttl_seconds_) : absl::InfiniteDuration();
  }
  /// Asks Redis at most once in half of the lifetime.
  void NoteUse(const ChunkAddress& address) override;
  /// Nothing: a cluster that is shared, and has no order, can't be paged through.
  std::vector<ChunkInfo> List(NamespaceFilter /*filter*/, const std::optional<ListPlace>& /*after*/,
                              int64_t /*limit*/) const override {
    return {};
  }
  /// kUnavailable: Redis does not answer or refuses. Until the entry is gone or this process ends, none of
  /// its lookups finds it, and a thread erases it once its node works, or before that a lookup that meets it.
  absl::StatusOr<bool> Erase(NamespaceFilter filter, const ChunkKey& key) override;
  /// kNotFound: nothing is pinned here.
  absl::Status SetPinned(NamespaceFilter filter, const ChunkKey& key, bool pinned) override;

  RedisTierStats Stats() const;
  TierStats Report() const override;
  ReplicaBoard* replica_board() override { return &board_; }
  /// Waits until every node works, and their connections are made. False: not by `deadline` (real time).
  bool AwaitAllWorking(absl::Time deadline) const { return cluster_->AwaitAllWorking(deadline); }

 private:
  RedisTier(Options options, std::unique_ptr<redis::ClusterClient> cluster);

  absl::Status PutStorable(const ChunkAddress& address, const ChunkKv& kv, const PutOptions& options);
  /// As Erase, but remembers nothing of what could not be erased.
  absl::StatusOr<bool> EraseNow(NamespaceFilter filter, const ChunkKey& key);
  /// Erases what is pending on nodes that work. Whether nothing failed.
  bool RetryErasures();
  void RunErasures();
  /// Counts what was found for a lookup. Whether it is an entry that was to be erased.
  bool CountLookup(const ChunkKey& key, const redis::FoundHeader& found);
  /// Counts and acts on the outcome of a layer's read.
  void ReportRead(const EntryHeader& header, const redis::RedisEntry::Outcome& outcome);
  /// What operators see of an entry; none where there is none to see.
  std::optional<ChunkInfo> InfoOf(NamespaceFilter filter, const absl::StatusOr<EntryHeader>& header) const;
  /// Gives an entry its whole lifetime again. Whether it is there. kUnavailable.
  absl::StatusOr<bool> Prolong(const ChunkAddress& address);
  /// Not waited for.
  void Remove(const ChunkAddress& address);
  /// Remove, if the entry is still to be erased and nobody is about to erase or write one.
  void RemovePending(const ChunkAddress& address);
  void Forget(const ChunkKey& key);
  /// The entry is not there. If it should be, others may have gone with it, as with FLUSHALL: then nothing is
  /// believed to be there any more, which costs a question for each of them that is offered again.
  void Miss(const ChunkKey& key, uint64_t period);
  /// `left`: of the entry's time. `period`: of the node, from before it told or was told.
  void Remember(const ChunkKey& key, absl::Duration left, uint64_t period);
  uint64_t PeriodOf(const ChunkKey& key) const { return cluster_->PeriodOf(redis::EntryKeys(key).Header()); }
  bool IsKnown(const ChunkKey& key, uint64_t period) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsToBeErased(const ChunkAddress& address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const int64_t ttl_seconds_;  // 0: for ever

  /// Held while a chunk is written that was to be erased perhaps, and while one that could not be erased is:
  /// what is written meanwhile would go with it. Before mutex_. By threads in the background alone, since
  /// they wait for Redis; lookups only try.
  absl::Mutex erasing_mutex_;
  mutable absl::Mutex mutex_;  // not held while anything is called, but for options_.now
  struct Known {
    absl::Time until;    // believed to be there
    absl::Time expires;  // at the earliest, unless something happens to it
    uint64_t period;     // a node that was away may have been restarted, and Redis keeps nothing
  };
  redis::KnownKeys<Known> known_ ABSL_GUARDED_BY(mutex_);  // there
  /// Those that were to be erased, but could not be: misses, until they are known to be gone. With the
  /// namespace that the entry must be of.
  redis::KnownKeys<std::optional<std::string>> pending_erasures_ ABSL_GUARDED_BY(mutex_);
  mutable RedisTierStats stats_ ABSL_GUARDED_BY(mutex_);  // without what the cluster's client counts

  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  redis::ContentIndex content_;  // of *cluster_, as the next
  redis::EntryWriter writer_;
  redis::RedisBoard board_;
  const std::unique_ptr<redis::ClusterClient> cluster_;  // its callbacks use everything above
  std::thread eraser_;                                   // last: uses everything
};

}  // namespace kvblend::store
