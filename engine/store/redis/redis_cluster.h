// A client of a Redis Cluster, or of one Redis server: commands go to the node that has their slot.
//
// Nobody waits for a connection: what is not connected, or does not work, answers kUnavailable at once, while
// threads in the background connect, probe, and ask which node has which slots.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/redis/redis_node.h"
#include "engine/store/redis/topology.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

struct ClusterOptions {
  std::vector<Endpoint> seeds;  // at least one; any of them tells of the others
  NodeOptions node;
  absl::Duration min_refresh_interval = absl::Seconds(1);  // between two readings of the map of slots
};

/// Since start.
struct ClusterCounters {
  int64_t timeouts = 0;           // connections that stopped answering
  int64_t connection_errors = 0;  // refused, closed, reset, not authenticated
  int64_t protocol_errors = 0;    // replies that are no RESP
  int64_t error_replies = 0;      // -CLUSTERDOWN, -OOM, ...
  int64_t skipped_commands = 0;   // met a node that does not work: not sent
  int64_t moved = 0;
  int64_t asked = 0;  // ASK
  int64_t redirected_too_often = 0;
  int64_t breaker_opens = 0;
  int64_t topology_refreshes = 0;
  int64_t failed_topology_refreshes = 0;
};

struct ClusterStats : ClusterCounters {
  bool has_topology = false;
  std::vector<NodeStats> nodes;  // without a topology the seeds, none of which works
};

/// A command whose first argument but the name is a key, which says where it goes.
std::unique_ptr<Command> MakeCommand(Lane lane, const std::vector<std::string>& arguments,
                                     int64_t max_reply_bytes = 1 << 12);

/// Thread-safe.
class ClusterClient final : private NodeObserver {
 public:
  static constexpr int32_t kMaxHops = 3;  // redirections that one command follows

  /// Begins to connect.
  ClusterClient(ClusterOptions options, std::unique_ptr<Transport> transport);
  /// Cancels what waits, and waits for what is under way. REQUIRES: no call is.
  ~ClusterClient() override;

  /// Sends a command; command->done will be called. On error it will not, and nothing was sent.
  absl::Status Submit(std::unique_ptr<Command> command);

  /// Sends all commands (whose `done` is set here), and waits until each has a reply or `deadline` (in terms
  /// of options.now) has passed; then they have kDeadlineExceeded, and what they borrow may still be in use:
  /// with borrowed payload pass InfiniteFuture, and the stall timeouts bound the waiting.
  std::vector<absl::StatusOr<Reply>> Call(std::vector<std::unique_ptr<Command>> commands,
                                          absl::Time deadline);

  /// As Call, of one command; an error that Redis answers is kUnavailable.
  absl::StatusOr<Reply> CallOne(std::unique_ptr<Command> command, absl::Time deadline);
  /// Sends a command, and forgets it.
  void Send(std::unique_ptr<Command> command);

  /// For Command::id.
  uint64_t NewId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  /// As RedisNode::Raise.
  void Raise(uint64_t id, CommandPriority priority);
  /// As RedisNode::Cancel.
  void Cancel(uint64_t id);

  /// Of the node with this key, RedisNode::period; 0: there is none. As long as it is the same, what was
  /// there is lost at most to eviction and to commands of others.
  uint64_t PeriodOf(const std::string& key) const;
  /// Whether the node with this key works, so that Submit would send to it.
  bool Works(const std::string& key) const;

  /// Waits until what is known of the nodes is as wanted. False: not by `deadline` (real time).
  bool AwaitStats(const std::function<bool(const ClusterStats&)>& wanted, absl::Time deadline) const;
  /// All nodes work, and there is one for every slot.
  bool AwaitAllWorking(absl::Time deadline) const;

  ClusterStats stats() const;
  absl::Time now() const { return options_.node.now(); }

 private:
  struct Routing {
    Topology topology;
    std::vector<std::shared_ptr<RedisNode>> nodes;  // one for each of topology.masters
  };

  // NodeObserver
  void Finish(std::unique_ptr<Command> command, absl::StatusOr<Reply> reply, const Endpoint& from) override;
  void StateChanged() override;
  void ConnectionFailed(const absl::Status& status) override;
  uint64_t NewPeriod() override { return next_period_.fetch_add(1, std::memory_order_relaxed); }

  /// Also those that are being given up.
  std::vector<std::shared_ptr<RedisNode>> AllNodes() const;
  void Count(int64_t ClusterCounters::*counter);
  /// Says it to operators, who have perhaps given us too few rights, or Redis too little memory. Errors of
  /// one kind, which is the first word, are said now and then.
  void LogErrorReply(const std::string& text, const Endpoint& from);
  std::shared_ptr<RedisNode> NodeOf(int32_t slot) const;
  std::shared_ptr<RedisNode> NodeAt(const Endpoint& endpoint) const;
  void RunRefresh();
  absl::Status Refresh();
  absl::StatusOr<Topology> AskFor(const Endpoint& endpoint);
  void Adopt(Topology topology);
  void WantRefresh();
  void DropRetired();

  const ClusterOptions options_;
  const std::unique_ptr<Transport> transport_;

  mutable absl::Mutex mutex_;  // nodes are asked for their state under it
  std::shared_ptr<const Routing> routing_ ABSL_GUARDED_BY(mutex_);  // null until a node has told
  std::vector<std::shared_ptr<RedisNode>> retired_ ABSL_GUARDED_BY(mutex_);
  int64_t retired_breaker_opens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool refresh_wanted_ ABSL_GUARDED_BY(mutex_) = true;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // how often what stats() tells has changed
  bool said_unreachable_ = false;                 // used by the refreshing thread only

  mutable absl::Mutex counters_mutex_;
  ClusterCounters counters_ ABSL_GUARDED_BY(counters_mutex_);  // breaker_opens is counted by the nodes
  std::map<std::string, absl::Time> last_logged_errors_ ABSL_GUARDED_BY(counters_mutex_);  // by kind
  std::atomic<uint64_t> next_id_{1};
  std::atomic<uint64_t> next_period_{1};

  std::thread refresher_;
};

}  // namespace kvblend::store::redis
