// A Redis Cluster in this process, behind the transport seam, which can do what a real one can't be made to
// do on demand: stall, reset, talk garbage, send commands in circles. What it knows of Redis is what the tier
// uses.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/redis/transport.h"

namespace kvblend::store {

/// A clock that stands still, except that waiting for what never comes passes the time that was waited.
class FakeClock {
 public:
  absl::Time Now() const {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  void AdvanceTo(absl::Time time) {
    absl::MutexLock lock(&mutex_);
    if (time > now_) now_ = time;
  }
  void Advance(absl::Duration duration) {
    absl::MutexLock lock(&mutex_);
    now_ += duration;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000);
};

/// What happens instead of, or to, one command's reply.
struct FakeReply {
  enum class Then : uint8_t { kGoOn, kStall, kReset };

  bool execute = true;                 // run the command
  std::optional<std::string> instead;  // these bytes instead of its reply
  size_t keep_bytes = SIZE_MAX;        // of the reply; the rest is lost
  Then then = Then::kGoOn;             // with the connection, once what is kept was read
};

/// A command whose reply is lost behind `keep_bytes`, and what becomes of the connection.
inline FakeReply CutReply(size_t keep_bytes, FakeReply::Then then, bool execute = true) {
  FakeReply reply;
  reply.execute = execute;
  reply.keep_bytes = keep_bytes;
  reply.then = then;
  return reply;
}

class FakeRedis {
 public:
  using Arguments = std::vector<std::string>;
  /// What to do with a command; called with no lock held, on the client's threads.
  using Script = std::function<FakeReply(int32_t node, const Arguments&)>;
  enum class ConnectFault : uint8_t { kNone, kRefused, kTimeout };

  /// Node i is at 10.0.0.i:7000; the slots are divided equally. 0 nodes: one server that is no cluster.
  explicit FakeRedis(int32_t num_nodes);

  /// What clients connect with; any number of them, each must be gone before this.
  std::unique_ptr<redis::Transport> NewTransport();
  static redis::Endpoint EndpointOf(int32_t node);
  FakeClock& clock() { return clock_; }

  // Faults.
  void SetScript(Script script);
  /// A script: every `command` gets this reply, others are done as ever.
  void ReplyTo(const std::string& command, const FakeReply& reply);
  void SetConnectFault(int32_t node, ConnectFault fault);
  /// Existing connections are reset and new ones refused; data stay.
  void Kill(int32_t node);
  void Revive(int32_t node);
  void RequirePassword(std::string user, std::string password);
  /// Slots of `node` from now on at another one, without telling anybody; data move along.
  void MoveSlots(int32_t from, int32_t to);

  // What is stored, of all nodes.
  std::vector<std::string> Keys();
  std::optional<std::string> Get(const std::string& key);
  void Set(const std::string& key, std::string value);
  void Erase(const std::string& key);
  /// Seconds that a key has left; -1: for ever.
  int64_t TtlSeconds(const std::string& key);
  std::set<std::string> Members(const std::string& key);
  void AddMember(const std::string& key, const std::string& member);

  int32_t NodeOf(const std::string& key);
  int64_t num_commands() const { return num_commands_; }  // so far

 private:
  friend class FakeConnection;
  struct Value {
    std::string text;
    std::set<std::string> members;  // of a sorted set whose scores are all 0
    bool is_set = false;
    absl::Time expires = absl::InfiniteFuture();
  };
  struct Node {
    std::map<std::string, Value> values;
    ConnectFault connect_fault = ConnectFault::kNone;
    uint64_t incarnation = 0;  // connections of earlier ones are dead
  };
  class Transport;

  std::string Execute(int32_t node, const Arguments& arguments, bool asking)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ExecuteOnKeys(Node& node, const Arguments& arguments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string ClusterSlots() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Value* Find(Node& node, const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int32_t OwnerOf(const std::string& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  FakeClock clock_;
  const bool is_cluster_;
  absl::Mutex mutex_;
  std::vector<Node> nodes_ ABSL_GUARDED_BY(mutex_);
  std::vector<int32_t> owners_ ABSL_GUARDED_BY(mutex_);  // of slots
  Script script_ ABSL_GUARDED_BY(mutex_);
  std::string user_ ABSL_GUARDED_BY(mutex_);
  std::string password_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> num_commands_ = 0;
};

}  // namespace kvblend::store
