#include "engine/store/redis/redis_node.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::store::redis {
namespace {

// What goes before a command for a slot that is being moved. Only its errors matter.
std::unique_ptr<Command> AskingCommand() {
  auto asking = std::make_unique<Command>();
  asking->usual_reply_bytes = 64;
  asking->done = [](const absl::StatusOr<Reply>&) {};
  return asking;
}

/// Less than this in one stall period is no progress: a node that trickles is as good as dead.
constexpr int64_t kProgressBytes = int64_t{64} << 10;
constexpr size_t kReadBytes = size_t{256} << 10;
constexpr size_t kWriteBytes = size_t{1} << 20;          // in one stall period
constexpr int64_t kMaxBytesInFlight = int64_t{8} << 20;  // of replies, per connection

}  // namespace

// --- the waiting commands

RedisNode::RedisNode(Endpoint endpoint, const NodeOptions& options, Transport& transport,
                     NodeObserver& observer)
    : endpoint_(std::move(endpoint)),
      options_(options),
      transport_(transport),
      observer_(observer),
      breaker_(endpoint_.ToString(), options.breaker),
      period_(observer.NewPeriod()),
      random_(std::random_device()()) {
  for (int32_t i = 0; i < options_.read_connections; ++i) threads_.emplace_back([this] { Run(Lane::kRead); });
  threads_.emplace_back([this] { Run(Lane::kWrite); });
}

RedisNode::~RedisNode() { Stop(); }

void RedisNode::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  std::vector<std::unique_ptr<Command>> left;
  {
    absl::MutexLock lock(&mutex_);
    left = TakeAllWaiting();
  }
  FinishAll(std::move(left), absl::CancelledError("the connection to Redis is being closed"));
}

absl::Status RedisNode::Submit(std::unique_ptr<Command>& command) {
  absl::MutexLock lock(&mutex_);
  LaneState& lane = lanes_[static_cast<size_t>(command->lane)];
  if (stop_ || !breaker_.allows_requests() || lane.connections == 0) {
    return absl::UnavailableError(
        absl::StrCat("Redis node ", endpoint_.ToString(), " is ", NameOf(breaker_.state())));
  }
  if (static_cast<int64_t>(lane.waiting.size()) >= options_.max_waiting) {
    absl::Status full = absl::ResourceExhaustedError(
        absl::StrCat("Redis node ", endpoint_.ToString(), ": ", lane.waiting.size(),
                     " commands wait; allowed: ", options_.max_waiting));
    if (lane.waiting.empty() || lane.waiting.rbegin()->first.first <= command->priority) return full;
    EndWaiting(lane, std::prev(lane.waiting.end()), std::move(full));
  }
  const Place place(command->priority, next_place_++);
  if (command->id != 0) by_id_[command->id] = {command->lane, place};
  lane.waiting.emplace(place, std::move(command));
  return absl::OkStatus();
}

void RedisNode::Cancel(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  LaneState& lane = lanes_[static_cast<size_t>(found->second.first)];
  EndWaiting(lane, lane.waiting.find(found->second.second), absl::CancelledError("the read was cancelled"));
}

void RedisNode::EndWaiting(LaneState& lane, Queue::iterator place, absl::Status status) {
  if (place->second->id != 0) by_id_.erase(place->second->id);
  lane.ended.emplace_back(std::move(place->second), std::move(status));
  lane.waiting.erase(place);
}

void RedisNode::Raise(uint64_t id, CommandPriority priority) {
  absl::MutexLock lock(&mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second.second.first <= priority) return;
  Queue& waiting = lanes_[static_cast<size_t>(found->second.first)].waiting;
  const auto old = waiting.find(found->second.second);
  std::unique_ptr<Command> command = std::move(old->second);
  waiting.erase(old);
  command->priority = priority;
  found->second.second.first = priority;
  waiting.emplace(found->second.second, std::move(command));
}

std::vector<std::unique_ptr<Command>> RedisNode::TakeAllWaiting() {
  std::vector<std::unique_ptr<Command>> all;
  for (LaneState& lane : lanes_) {
    for (auto& [place, command] : lane.waiting) all.push_back(std::move(command));
    for (auto& [command, status] : lane.ended) all.push_back(std::move(command));
    lane.waiting.clear();
    lane.ended.clear();
  }
  by_id_.clear();
  return all;
}

void RedisNode::FinishAll(std::vector<std::unique_ptr<Command>> commands, const absl::Status& status) {
  for (auto& command : commands) observer_.Finish(std::move(command), status, endpoint_);
}

NodeStats RedisNode::stats() const {
  absl::MutexLock lock(&mutex_);
  NodeStats stats{.state = breaker_.state(), .times_opened = breaker_.times_opened()};
  for (const LaneState& lane : lanes_) stats.connections += lane.connections;
  return stats;
}

uint64_t RedisNode::period() const {
  absl::MutexLock lock(&mutex_);
  return period_;
}

// --- connections

std::optional<int64_t> RedisNode::AwaitTurn(absl::Time not_before) {
  absl::MutexLock lock(&mutex_);
  while (!stop_) {
    const absl::Time at = std::max(not_before, breaker_.retry_at());
    const bool is_probed = breaker_.state() == NodeState::kProbing;
    const absl::Duration left = is_probed ? absl::InfiniteDuration() : at - options_.now();
    // No pause is as long as that: the clock was set back.
    const bool set_back = !is_probed && left > options_.breaker.max_backoff;
    if (left <= absl::ZeroDuration() || set_back) {
      breaker_.Probing();
      return num_failures_;
    }
    // If another connection is probing, waits until it is done.
    const NodeState seen = breaker_.state();
    const auto changed = [&]()
                             ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || breaker_.state() != seen; };
    // Woken at times, as options_.now may be another clock than this one's.
    constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
    mutex_.AwaitWithTimeout(absl::Condition(&changed), std::min(left, kLookAgain));
  }
  return std::nullopt;
}

void RedisNode::Fail(const absl::Status& status, Lane lane, std::vector<std::unique_ptr<Command>> in_flight,
                     bool was_connected) {
  std::vector<std::unique_ptr<Command>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    // First of all, so that whoever hears of it and asks again is refused at once.
    breaker_.Failed(options_.now(), status, std::uniform_real_distribution<double>(0, 1)(random_));
    ++num_failures_;
    period_ = observer_.NewPeriod();
    if (was_connected) --lanes_[static_cast<size_t>(lane)].connections;
    waiting = TakeAllWaiting();
  }
  observer_.ConnectionFailed(status);
  FinishAll(std::move(in_flight), status);
  FinishAll(std::move(waiting), status);
  observer_.StateChanged();
}

void RedisNode::Run(Lane lane) {
  absl::Time not_before = absl::InfinitePast();
  while (const std::optional<int64_t> num_failures = AwaitTurn(not_before)) {
    absl::StatusOr<std::unique_ptr<Connection>> connection =
        ConnectAndAuthenticate(transport_, endpoint_, options_);
    if (!connection.ok()) {
      bool others_work = false;
      {
        absl::MutexLock lock(&mutex_);
        others_work = breaker_.allows_requests();
      }
      // One connection more than the server takes is no reason to give up those that work.
      not_before = options_.now() + options_.breaker.max_backoff;
      if (!others_work) {
        not_before = absl::InfinitePast();
        Fail(connection.status(), lane, {}, /*was_connected=*/false);
      }
      continue;
    }
    {
      absl::MutexLock lock(&mutex_);
      // Another connection failed meanwhile: that this one came about does not mean that the node works.
      if (num_failures_ != *num_failures) continue;
      breaker_.Works(options_.now());
      ++lanes_[static_cast<size_t>(lane)].connections;
    }
    observer_.StateChanged();
    Serve(lane, **connection, *num_failures);
  }
}

/// The commands of one connection that have no reply yet.
class RedisNode::Session {
 public:
  Session(RedisNode& node, Lane lane, Connection& connection)
      : node_(node), lane_(lane), connection_(connection), buffer_(kReadBytes) {}

  bool idle() const { return in_flight_.empty(); }
  /// Whether one more may be sent behind `more` commands with replies of `more_bytes`.
  bool has_room(size_t more, int64_t more_bytes) const {
    const size_t count = in_flight_.size() + more;
    return count == 0 || (count < static_cast<size_t>(node_.options_.max_commands_in_flight) &&
                          bytes_in_flight_ + more_bytes < kMaxBytesInFlight);
  }

  /// The reply is due from now on; nothing is sent yet. nullptr: a reply that nobody wants.
  void Add(std::unique_ptr<Command> command) {
    const bool first = in_flight_.empty();
    if (command != nullptr) bytes_in_flight_ += command->bytes_in_flight();
    in_flight_.push_back(std::move(command));
    if (!first) return;
    ExpectNext();
    Progressed();
  }

  absl::Status Send(absl::Span<const Command* const> commands, bool ping) {
    std::string small = ping ? FormatCommand({"PING"}).head : "";
    for (const Command* command : commands) {
      if (command->asking) small += FormatCommand({"ASKING"}).head;
      small += command->wire.head;
      if (!command->wire.payload.empty()) {
        KVBLEND_RETURN_IF_ERROR(Write(AsBytes(small)));
        KVBLEND_RETURN_IF_ERROR(Write(command->wire.payload));
        Progressed();  // the node takes values, so it is alive; small commands prove nothing
        small.clear();
      }
      small += command->wire.tail;
    }
    return Write(AsBytes(small));
  }

  /// Waits for bytes, and finishes the commands whose replies are complete.
  absl::Status Receive() {
    KVBLEND_ASSIGN_OR_RETURN(const size_t count, connection_.Read(absl::MakeSpan(buffer_), stalled_at_));
    KVBLEND_RETURN_IF_ERROR(reader_.Feed(absl::MakeConstSpan(buffer_).first(count)));
    bytes_since_progress_ += static_cast<int64_t>(count);
    if (bytes_since_progress_ >= kProgressBytes) Progressed();
    while (!in_flight_.empty()) {
      KVBLEND_ASSIGN_OR_RETURN(std::optional<Reply> reply, reader_.Next());
      if (!reply.has_value()) return absl::OkStatus();
      std::unique_ptr<Command> command = std::move(in_flight_.front());
      in_flight_.pop_front();
      Progressed();
      ExpectNext();
      if (command == nullptr) continue;
      bytes_in_flight_ -= command->bytes_in_flight();
      node_.observer_.Finish(std::move(command), *std::move(reply), node_.endpoint_);
    }
    KVBLEND_ASSIGN_OR_RETURN(const std::optional<Reply> unasked, reader_.Next());
    return unasked.has_value() ? absl::DataLossError("a reply that nobody asked for") : absl::OkStatus();
  }

  std::vector<std::unique_ptr<Command>> TakeAll() {
    std::vector<std::unique_ptr<Command>> all;
    for (auto& command : in_flight_) {
      if (command != nullptr) all.push_back(std::move(command));
    }
    in_flight_.clear();
    return all;
  }

 private:
  absl::Status Write(absl::Span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const absl::Span<const std::byte> step = bytes.subspan(0, kWriteBytes);
      KVBLEND_RETURN_IF_ERROR(connection_.Write(step, node_.options_.now() + node_.stall(lane_)));
      bytes.remove_prefix(step.size());
    }
    return absl::OkStatus();
  }

  void Progressed() {
    stalled_at_ = node_.options_.now() + node_.stall(lane_);
    bytes_since_progress_ = 0;
  }
  void ExpectNext() {
    constexpr int64_t kPlain = 1 << 16;
    const Command* head = in_flight_.empty() ? nullptr : in_flight_.front().get();
    if (head == nullptr) return reader_.ExpectNext({}, kPlain);
    // The same read may hold the beginning of later replies.
    reader_.ExpectNext(head->destinations, head->max_reply_bytes + kPlain + int64_t{kReadBytes});
  }

  RedisNode& node_;
  const Lane lane_;
  Connection& connection_;
  std::vector<std::byte> buffer_;
  RespReader reader_;
  std::deque<std::unique_ptr<Command>> in_flight_;
  int64_t bytes_in_flight_ = 0;
  int64_t bytes_since_progress_ = 0;
  absl::Time stalled_at_ = absl::InfinitePast();
};

void RedisNode::Serve(Lane lane, Connection& connection, int64_t num_failures) {
  Session session(*this, lane, connection);
  while (true) {
    std::vector<std::unique_ptr<Command>> taken;
    Ended ended;
    bool stop = false;
    {
      absl::MutexLock lock(&mutex_);
      LaneState& state = lanes_[static_cast<size_t>(lane)];
      const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stop_ || !state.waiting.empty() || !state.ended.empty() || num_failures_ != num_failures;
      };
      if (session.idle()) mutex_.AwaitWithTimeout(absl::Condition(&work), options_.ping_interval);
      stop = stop_;
      // What ended another connection has probably ended this one too.
      if (stop || (session.idle() && num_failures_ != num_failures)) {
        --state.connections;
        if (!stop) return;
      }
      ended.swap(state.ended);
      int64_t bytes = 0;
      while (!stop && !state.waiting.empty() && session.has_room(taken.size(), bytes)) {
        std::unique_ptr<Command> command = std::move(state.waiting.begin()->second);
        state.waiting.erase(state.waiting.begin());
        if (command->id != 0) by_id_.erase(command->id);
        bytes += command->bytes_in_flight();
        taken.push_back(std::move(command));
      }
    }
    for (auto& [command, how] : ended) observer_.Finish(std::move(command), std::move(how), endpoint_);
    if (stop) {
      return FinishAll(session.TakeAll(), absl::CancelledError("the connection to Redis is being closed"));
    }
    const absl::Time now = options_.now();
    std::vector<const Command*> to_send;
    for (auto& command : taken) {
      if (command->deadline < now) {
        observer_.Finish(std::move(command), absl::DeadlineExceededError("waited too long to be sent"),
                         endpoint_);
        continue;
      }
      to_send.push_back(command.get());
      if (command->asking) session.Add(AskingCommand());
      session.Add(std::move(command));
    }
    const bool ping = session.idle();
    if (ping) session.Add(nullptr);
    absl::Status status = session.Send(to_send, ping);
    if (status.ok()) status = session.Receive();
    if (!status.ok()) return Fail(status, lane, session.TakeAll(), /*was_connected=*/true);
  }
}

// --- how a connection begins

absl::StatusOr<Reply> CallNow(Connection& connection, const Wire& wire, int64_t max_reply_bytes,
                              absl::Time deadline) {
  KVBLEND_RETURN_IF_ERROR(connection.Write(AsBytes(wire.head), deadline));
  RespReader reader;
  reader.ExpectNext({}, max_reply_bytes);
  std::array<std::byte, 1 << 14> buffer;
  while (true) {
    KVBLEND_ASSIGN_OR_RETURN(const size_t count, connection.Read(absl::MakeSpan(buffer), deadline));
    KVBLEND_RETURN_IF_ERROR(reader.Feed(absl::MakeConstSpan(buffer).first(count)));
    KVBLEND_ASSIGN_OR_RETURN(std::optional<Reply> reply, reader.Next());
    if (reply.has_value()) return *std::move(reply);
  }
}

absl::StatusOr<std::unique_ptr<Connection>> ConnectAndAuthenticate(Transport& transport,
                                                                   const Endpoint& endpoint,
                                                                   const NodeOptions& options) {
  constexpr int64_t kMaxReplyBytes = 1 << 14;
  const absl::Time deadline = options.now() + options.connect_timeout;
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection, transport.Connect(endpoint, deadline));
  if (!options.password.empty()) {
    const Wire auth = options.user.empty() ? FormatCommand({"AUTH", options.password})
                                           : FormatCommand({"AUTH", options.user, options.password});
    KVBLEND_ASSIGN_OR_RETURN(const Reply reply, CallNow(*connection, auth, kMaxReplyBytes, deadline));
    if (!reply.is_ok()) {
      return absl::UnauthenticatedError(
          absl::StrCat(endpoint.ToString(), " refuses the password: ", reply.text));
    }
  }
  KVBLEND_ASSIGN_OR_RETURN(const Reply reply,
                           CallNow(*connection, FormatCommand({"PING"}), kMaxReplyBytes, deadline));
  // LOADING, NOAUTH, too many clients.
  if (reply.is_error()) {
    return absl::UnavailableError(absl::StrCat(endpoint.ToString(), " answers: ", reply.text));
  }
  if (reply.type != Reply::Type::kStatus || reply.text != "PONG") {
    return absl::DataLossError(absl::StrCat(endpoint.ToString(), " does not talk like a Redis node"));
  }
  return connection;
}

}  // namespace kvblend::store::redis
