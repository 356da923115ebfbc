#include "engine/store/redis/redis_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "spdlog/spdlog.h"

namespace kvblend::store::redis {
namespace {

constexpr absl::Duration kRefreshInterval =
    absl::Seconds(60);  // of the map of slots, when nothing asks for it
constexpr absl::Duration kErrorLogInterval = absl::Minutes(10);  // of errors of one kind
constexpr size_t kMaxErrorKinds = 32;
constexpr size_t kMaxLoggedErrorBytes = 200;

}  // namespace

std::unique_ptr<Command> MakeCommand(Lane lane, const std::vector<std::string>& arguments,
                                     int64_t max_reply_bytes) {
  auto command = std::make_unique<Command>();
  const std::vector<std::string_view> views(arguments.begin(), arguments.end());
  command->wire = FormatCommand(views);
  command->slot = SlotOf(arguments[1]);
  command->lane = lane;
  command->max_reply_bytes = max_reply_bytes;
  return command;
}

ClusterClient::ClusterClient(ClusterOptions options, std::unique_ptr<Transport> transport)
    : options_(std::move(options)), transport_(std::move(transport)), refresher_([this] { RunRefresh(); }) {}

ClusterClient::~ClusterClient() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  refresher_.join();
  std::vector<std::shared_ptr<RedisNode>> nodes;
  {
    absl::MutexLock lock(&mutex_);
    nodes = retired_;
    if (routing_ != nullptr) nodes.insert(nodes.end(), routing_->nodes.begin(), routing_->nodes.end());
  }
  for (const auto& node : nodes) node->Stop();
}

// --- commands

std::shared_ptr<RedisNode> ClusterClient::NodeOf(int32_t slot) const {
  absl::MutexLock lock(&mutex_);
  if (routing_ == nullptr) return nullptr;
  const uint16_t index = routing_->topology.slots[slot];
  return index == Topology::kNone ? nullptr : routing_->nodes[index];
}

std::shared_ptr<RedisNode> ClusterClient::NodeAt(const Endpoint& endpoint) const {
  absl::MutexLock lock(&mutex_);
  if (routing_ == nullptr) return nullptr;
  const auto& masters = routing_->topology.masters;
  const auto found = std::find(masters.begin(), masters.end(), endpoint);
  return found == masters.end() ? nullptr : routing_->nodes[found - masters.begin()];
}

uint64_t ClusterClient::PeriodOf(const std::string& key) const {
  const std::shared_ptr<RedisNode> node = NodeOf(SlotOf(key));
  return node == nullptr ? 0 : node->period();
}

bool ClusterClient::Works(const std::string& key) const {
  const std::shared_ptr<RedisNode> node = NodeOf(SlotOf(key));
  return node != nullptr && node->stats().state == NodeState::kWorking;
}

absl::Status ClusterClient::Submit(std::unique_ptr<Command> command) {
  const std::shared_ptr<RedisNode> node = NodeOf(command->slot);
  absl::Status status =
      node == nullptr
          ? absl::UnavailableError(absl::StrCat("no Redis node is known for slot ", command->slot))
          : node->Submit(command);
  if (!status.ok()) Count(&ClusterCounters::skipped_commands);
  return status;
}

std::vector<absl::StatusOr<Reply>> ClusterClient::Call(std::vector<std::unique_ptr<Command>> commands,
                                                       absl::Time deadline) {
  struct Shared {
    absl::Mutex mutex;
    std::vector<absl::StatusOr<Reply>> replies ABSL_GUARDED_BY(mutex);
    size_t missing ABSL_GUARDED_BY(mutex) = 0;
  };
  const auto shared = std::make_shared<Shared>();
  {
    absl::MutexLock lock(&shared->mutex);
    shared->replies.assign(commands.size(), absl::DeadlineExceededError("Redis did not answer in time"));
    shared->missing = commands.size();
  }
  for (size_t i = 0; i < commands.size(); ++i) {
    commands[i]->done = [shared, i](absl::StatusOr<Reply> reply) {
      absl::MutexLock lock(&shared->mutex);
      if (i < shared->replies.size()) shared->replies[i] = std::move(reply);
      --shared->missing;
    };
    if (absl::Status status = Submit(std::move(commands[i])); !status.ok()) {
      absl::MutexLock lock(&shared->mutex);
      shared->replies[i] = std::move(status);
      --shared->missing;
    }
  }
  absl::MutexLock lock(&shared->mutex);
  const auto complete = [&]() ABSL_SHARED_LOCKS_REQUIRED(shared->mutex) { return shared->missing == 0; };
  const absl::Duration left =
      deadline == absl::InfiniteFuture() ? absl::InfiniteDuration() : deadline - now();
  shared->mutex.AwaitWithTimeout(absl::Condition(&complete), left);
  return std::exchange(shared->replies, {});
}

absl::StatusOr<Reply> ClusterClient::CallOne(std::unique_ptr<Command> command, absl::Time deadline) {
  std::vector<std::unique_ptr<Command>> commands;
  commands.push_back(std::move(command));
  absl::StatusOr<Reply> reply = std::move(Call(std::move(commands), deadline)[0]);
  if (reply.ok() && reply->is_error()) return absl::UnavailableError("Redis answers: " + reply->text);
  return reply;
}

void ClusterClient::Send(std::unique_ptr<Command> command) {
  command->done = [](const absl::StatusOr<Reply>&) {};
  Submit(std::move(command)).IgnoreError();
}

std::vector<std::shared_ptr<RedisNode>> ClusterClient::AllNodes() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<RedisNode>> nodes = retired_;
  if (routing_ != nullptr) nodes.insert(nodes.end(), routing_->nodes.begin(), routing_->nodes.end());
  return nodes;
}

void ClusterClient::Raise(uint64_t id, CommandPriority priority) {
  for (const auto& node : AllNodes()) node->Raise(id, priority);
}

void ClusterClient::Cancel(uint64_t id) {
  for (const auto& node : AllNodes()) node->Cancel(id);
}

void ClusterClient::Finish(std::unique_ptr<Command> command, absl::StatusOr<Reply> reply,
                           const Endpoint& from) {
  if (reply.ok() && reply->is_error()) {
    const std::optional<Redirect> redirect = ParseRedirect(*reply, from);
    if (redirect.has_value()) {
      Count(redirect->ask ? &ClusterCounters::asked : &ClusterCounters::moved);
      if (!redirect->ask) WantRefresh();
      if (++command->hops <= kMaxHops) {
        command->asking = redirect->ask;
        const std::shared_ptr<RedisNode> node = NodeAt(redirect->endpoint);
        const absl::Status status =
            node == nullptr ? absl::UnavailableError(absl::StrCat(
                                  "Redis node ", redirect->endpoint.ToString(), " is not known yet"))
                            : node->Submit(command);
        if (status.ok()) return;
        if (node == nullptr) WantRefresh();
        Count(&ClusterCounters::skipped_commands);
        reply = status;
      } else {
        Count(&ClusterCounters::redirected_too_often);
        reply = absl::UnavailableError(
            absl::StrCat("Redis redirected a command ", command->hops, " times: ", reply->text));
      }
    } else {
      Count(&ClusterCounters::error_replies);
      LogErrorReply(reply->text, from);
      if (reply->is_error("CLUSTERDOWN") || reply->is_error("MOVED") || reply->is_error("READONLY")) {
        WantRefresh();
      }
    }
  }
  command->done(std::move(reply));
}

void ClusterClient::LogErrorReply(const std::string& text, const Endpoint& from) {
  const absl::Time now = options_.node.now();
  {
    absl::MutexLock lock(&counters_mutex_);
    const std::string kind = text.substr(0, std::min(text.find(' '), kMaxLoggedErrorBytes));
    const auto last = last_logged_errors_.find(kind);
    if (last == last_logged_errors_.end() && last_logged_errors_.size() >= kMaxErrorKinds) return;
    // Below zero: the clock was set back.
    if (last != last_logged_errors_.end() && now >= last->second && now - last->second < kErrorLogInterval) {
      return;
    }
    last_logged_errors_.insert_or_assign(kind, now);
  }
  std::string shown = text.substr(0, kMaxLoggedErrorBytes);
  std::replace_if(shown.begin(), shown.end(), absl::ascii_iscntrl, '?');
  spdlog::warn("chunk store in Redis: node {} refuses commands; going on without what they are for: {}",
               from.ToString(), shown);
}

// --- what is known of the cluster

void ClusterClient::StateChanged() {
  absl::MutexLock lock(&mutex_);
  ++changes_;
}

void ClusterClient::ConnectionFailed(const absl::Status& status) {
  Count(absl::IsDeadlineExceeded(status) ? &ClusterCounters::timeouts
        : absl::IsDataLoss(status)       ? &ClusterCounters::protocol_errors
                                         : &ClusterCounters::connection_errors);
  WantRefresh();  // perhaps a replica is the master now
}

void ClusterClient::WantRefresh() {
  absl::MutexLock lock(&mutex_);
  refresh_wanted_ = true;
}

void ClusterClient::RunRefresh() {
  absl::Duration pause = options_.min_refresh_interval;
  while (true) {
    const absl::Status status = Refresh();
    if (status.ok()) {
      Count(&ClusterCounters::topology_refreshes);
      pause = options_.min_refresh_interval;
      if (std::exchange(said_unreachable_, false)) spdlog::info("chunk store in Redis: the cluster answers");
    } else {
      Count(&ClusterCounters::failed_topology_refreshes);
      pause = std::min(2 * pause, std::max(options_.min_refresh_interval, options_.node.breaker.max_backoff));
      if (!std::exchange(said_unreachable_, true)) {
        spdlog::warn("chunk store in Redis: the cluster does not answer; going on without it: {}",
                     status.ToString());
      }
    }
    DropRetired();
    absl::MutexLock lock(&mutex_);
    ++changes_;
    // However often a storm of MOVED asks for a refresh, there is no more than one in this time.
    mutex_.AwaitWithTimeout(absl::Condition(&stop_), pause);
    const auto work = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stop_ || refresh_wanted_; };
    if (status.ok()) mutex_.AwaitWithTimeout(absl::Condition(&work), kRefreshInterval);
    if (stop_) return;
    refresh_wanted_ = false;
  }
}

absl::Status ClusterClient::Refresh() {
  std::vector<Endpoint> candidates;
  {
    absl::MutexLock lock(&mutex_);
    refresh_wanted_ = false;
    if (routing_ != nullptr) {
      // Nodes that work come first.
      for (const auto& node : routing_->nodes) {
        if (node->stats().state == NodeState::kWorking) candidates.push_back(node->endpoint());
      }
    }
  }
  candidates.insert(candidates.end(), options_.seeds.begin(), options_.seeds.end());
  absl::Status status;
  for (const Endpoint& endpoint : candidates) {
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) return absl::CancelledError("stopped");
    }
    absl::StatusOr<Topology> topology = AskFor(endpoint);
    if (topology.ok()) {
      Adopt(*std::move(topology));
      return absl::OkStatus();
    }
    status.Update(topology.status());
  }
  return status;
}

absl::StatusOr<Topology> ClusterClient::AskFor(const Endpoint& endpoint) {
  constexpr int64_t kMaxReplyBytes = int64_t{4} << 20;
  KVBLEND_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection,
                           ConnectAndAuthenticate(*transport_, endpoint, options_.node));
  KVBLEND_ASSIGN_OR_RETURN(const Reply reply, CallNow(*connection, FormatCommand({"CLUSTER", "SLOTS"}),
                                                      kMaxReplyBytes, now() + options_.node.connect_timeout));
  if (reply.is_error()) {
    if (reply.text.find("cluster support disabled") != std::string::npos) return Topology::Single(endpoint);
    return absl::UnavailableError(absl::StrCat(endpoint.ToString(), " answers CLUSTER SLOTS: ", reply.text));
  }
  KVBLEND_ASSIGN_OR_RETURN(Topology topology, ParseClusterSlots(reply, endpoint));
  if (topology.masters.empty()) {
    return absl::UnavailableError(absl::StrCat(endpoint.ToString(), ": no node of the cluster has any slot"));
  }
  return topology;
}

void ClusterClient::Adopt(Topology topology) {
  auto routing = std::make_shared<Routing>();
  routing->topology = std::move(topology);
  for (const Endpoint& endpoint : routing->topology.masters) {
    std::shared_ptr<RedisNode> node = NodeAt(endpoint);
    if (node == nullptr) {
      NodeObserver& observer = *this;
      node = std::make_shared<RedisNode>(endpoint, options_.node, *transport_, observer);
    }
    routing->nodes.push_back(std::move(node));
  }
  absl::MutexLock lock(&mutex_);
  if (routing_ != nullptr) {
    for (const auto& node : routing_->nodes) {
      const auto& kept = routing->nodes;
      if (std::find(kept.begin(), kept.end(), node) != kept.end()) continue;
      retired_breaker_opens_ += node->stats().times_opened;
      retired_.push_back(node);
    }
  }
  routing_ = std::move(routing);
  ++changes_;
}

void ClusterClient::DropRetired() {
  std::vector<std::shared_ptr<RedisNode>> retired;
  {
    absl::MutexLock lock(&mutex_);
    retired = retired_;
  }
  // Nodes are stopped here, on a thread that is none of theirs. Whoever still has one is only refused by it,
  // and may be one of its own threads, which must not be the last to have it.
  for (const auto& node : retired) node->Stop();
  absl::MutexLock lock(&mutex_);
  const auto last = [&](const std::shared_ptr<RedisNode>& node) { return node.use_count() <= 2; };
  std::erase_if(retired_, last);
}

void ClusterClient::Count(int64_t ClusterCounters::*counter) {
  absl::MutexLock lock(&counters_mutex_);
  ++(counters_.*counter);
}

ClusterStats ClusterClient::stats() const {
  ClusterStats stats;
  {
    absl::MutexLock lock(&counters_mutex_);
    static_cast<ClusterCounters&>(stats) = counters_;
  }
  std::shared_ptr<const Routing> routing;
  {
    absl::MutexLock lock(&mutex_);
    routing = routing_;
    stats.breaker_opens = retired_breaker_opens_;
  }
  stats.has_topology = routing != nullptr;
  if (routing == nullptr) {
    stats.nodes.resize(options_.seeds.size());  // else a Redis that never answered looks as well as none
  } else {
    for (const auto& node : routing->nodes) {
      stats.nodes.push_back(node->stats());
      stats.breaker_opens += stats.nodes.back().times_opened;
    }
  }
  return stats;
}

bool ClusterClient::AwaitStats(const std::function<bool(const ClusterStats&)>& wanted,
                               absl::Time deadline) const {
  while (true) {
    uint64_t seen = 0;
    {
      absl::MutexLock lock(&mutex_);
      seen = changes_;
    }
    if (wanted(stats())) return true;
    absl::MutexLock lock(&mutex_);
    const auto changed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return changes_ != seen; };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&changed), deadline)) return false;
  }
}

bool ClusterClient::AwaitAllWorking(absl::Time deadline) const {
  const int32_t connections = options_.node.read_connections + 1;
  const auto all_work = [&](const ClusterStats& stats) {
    return stats.has_topology &&
           std::all_of(stats.nodes.begin(), stats.nodes.end(), [&](const NodeStats& node) {
             return node.state == NodeState::kWorking && node.connections == connections;
           });
  };
  return AwaitStats(all_work, deadline);
}

}  // namespace kvblend::store::redis
