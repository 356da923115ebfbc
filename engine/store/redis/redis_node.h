// One node of a cluster: a few connections, the commands that wait for them, and a circuit breaker.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/steady_time.h"
#include "engine/store/lower_tier.h"
#include "engine/store/redis/circuit_breaker.h"
#include "engine/store/redis/resp.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store::redis {

/// Reads and writes have connections of their own, so that what is written behind delays no prompt.
enum class Lane : uint8_t { kRead, kWrite };
inline constexpr int32_t kNumLanes = 2;

/// The smallest goes first.
struct CommandPriority {
  bool bulk = false;  // looking something up goes before reading layers
  ReadPriority read = {};
  // NOLINTNEXTLINE(modernize-use-nullptr): there is no literal 0
  friend auto operator<=>(const CommandPriority&, const CommandPriority&) = default;
};

/// A command on its way to a node and back.
struct Command {
  Wire wire;
  int32_t slot = 0;
  Lane lane = Lane::kRead;
  CommandPriority priority = {};
  int64_t max_reply_bytes = 1 << 16;
  /// What counts as in flight: far less than the most where replies are seldom that long, so that many such
  /// commands go out one behind the other. 0: max_reply_bytes.
  int64_t usual_reply_bytes = 0;
  std::vector<absl::Span<std::byte>> destinations = {};  // as for RespReader::ExpectNext
  absl::Time deadline = absl::InfiniteFuture();          // not sent any more after it
  uint64_t id = 0;                                       // for Cancel; 0: can't be
  /// Called once, with no lock held, on a thread of the client, when Submit returned OK. Errors of Redis are
  /// replies.
  absl::AnyInvocable<void(absl::StatusOr<Reply>)> done = nullptr;

  // Set by the client.
  bool asking = false;
  int32_t hops = 0;

  int64_t bytes_in_flight() const { return usual_reply_bytes > 0 ? usual_reply_bytes : max_reply_bytes; }
};

struct NodeOptions {
  std::string user;      // empty: the default user
  std::string password;  // empty: no AUTH
  int32_t read_connections = 2;
  /// How long a connection may make no progress while replies are due.
  absl::Duration read_stall = absl::Milliseconds(50);
  absl::Duration write_stall = absl::Seconds(2);
  absl::Duration connect_timeout = absl::Seconds(1);
  absl::Duration ping_interval = absl::Seconds(5);  // of connections without work
  int32_t max_commands_in_flight = 64;              // per connection
  int64_t max_waiting = 1 << 16;                    // commands, per lane
  CircuitBreaker::Options breaker = {};
  std::function<absl::Time()> now = SteadyNow;  // thread-safe
};

struct NodeStats {
  NodeState state = NodeState::kConnecting;
  int64_t times_opened = 0;
  int32_t connections = 0;
};

/// What nodes tell who made them. Called with no lock of the node held, on its threads, but for NewPeriod.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  /// A command has its reply, or can't get one.
  virtual void Finish(std::unique_ptr<Command> command, absl::StatusOr<Reply> reply,
                      const Endpoint& from) = 0;
  virtual void StateChanged() = 0;
  /// A connection ended: kDeadlineExceeded, kDataLoss, kUnavailable.
  virtual void ConnectionFailed(const absl::Status& status) = 0;
  /// Another number each time; for RedisNode::period. Calls nothing.
  virtual uint64_t NewPeriod() = 0;
};

/// Sends commands one behind the other without waiting for replies, as many as may be in flight. A connection
/// whose replies stop coming is given up, with all that was on it, and the node is left alone until a probe
/// in the background succeeds. Thread-safe.
class RedisNode {
 public:
  /// `observer` and `transport` must outlive it. Begins to connect.
  RedisNode(Endpoint endpoint, const NodeOptions& options, Transport& transport, NodeObserver& observer);
  /// What waits is cancelled; what is under way is waited for, at most as long as the timeouts say.
  ~RedisNode();
  /// The same, ahead of time. Not from a thread of the node.
  void Stop();

  /// Takes the command, or leaves it and returns at once why not. kUnavailable: the node does not work now.
  /// kResourceExhausted: too many wait, and all of them go before it; otherwise the last of them has that.
  absl::Status Submit(std::unique_ptr<Command>& command);

  /// If it still waits, it goes as early as a smaller priority says.
  void Raise(uint64_t id, CommandPriority priority);
  /// If it still waits, it is finished with kCancelled soon. Returns at once.
  void Cancel(uint64_t id);

  const Endpoint& endpoint() const { return endpoint_; }
  NodeStats stats() const;
  /// Another one after every failure, and of every node: in the same period the server was not restarted.
  uint64_t period() const;

 private:
  using Place = std::pair<CommandPriority, uint64_t>;
  using Queue = absl::btree_map<Place, std::unique_ptr<Command>>;
  /// Commands that ended before they were sent, and how.
  using Ended = std::vector<std::pair<std::unique_ptr<Command>, absl::Status>>;
  struct LaneState {
    Queue waiting;
    Ended ended;
    int32_t connections = 0;
  };
  class Session;

  void Run(Lane lane);
  /// Serves until something fails, the node is stopped, or failed on another connection since `num_failures`.
  void Serve(Lane lane, Connection& connection, int64_t num_failures);
  /// Waits until this thread may try to connect; the number of failures until then. nullopt: stopped.
  std::optional<int64_t> AwaitTurn(absl::Time not_before);
  void Fail(const absl::Status& status, Lane lane, std::vector<std::unique_ptr<Command>> in_flight,
            bool was_connected);
  void FinishAll(std::vector<std::unique_ptr<Command>> commands, const absl::Status& status);
  void EndWaiting(LaneState& lane, Queue::iterator place, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<std::unique_ptr<Command>> TakeAllWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Duration stall(Lane lane) const {
    return lane == Lane::kRead ? options_.read_stall : options_.write_stall;
  }

  const Endpoint endpoint_;
  const NodeOptions options_;
  Transport& transport_;
  NodeObserver& observer_;

  mutable absl::Mutex mutex_;
  CircuitBreaker breaker_ ABSL_GUARDED_BY(mutex_);
  std::array<LaneState, kNumLanes> lanes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::pair<Lane, Place>> by_id_ ABSL_GUARDED_BY(mutex_);  // of waiting ones
  uint64_t next_place_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_failures_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t period_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::minstd_rand random_ ABSL_GUARDED_BY(mutex_);

  std::vector<std::thread> threads_;
};

/// Sends one command and waits for its reply. kDataLoss: what came is no RESP.
absl::StatusOr<Reply> CallNow(Connection& connection, const Wire& wire, int64_t max_reply_bytes,
                              absl::Time deadline);
/// Connects, shows who we are, and hears whether the server answers.
absl::StatusOr<std::unique_ptr<Connection>> ConnectAndAuthenticate(Transport& transport,
                                                                   const Endpoint& endpoint,
                                                                   const NodeOptions& options);

}  // namespace kvblend::store::redis
