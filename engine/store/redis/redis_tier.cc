#include "engine/store/redis/redis_tier.h"

#include "absl/strings/str_cat.h"
#include "engine/api/status_macros.h"
#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/socket_transport.h"

namespace kvblend::store {
namespace {

constexpr size_t kMaxKnownKeys = 100'000;
constexpr size_t kMaxPendingErasures = 10'000;
/// What Redis evicts in between is written again that late.
constexpr absl::Duration kRemember = absl::Minutes(10);

absl::Status BadOption(std::string_view name, const std::string& value, std::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("Redis tier: ", std::string(name), " is ", value, "; allowed: ", std::string(allowed)));
}

absl::Status Check(const RedisTier::Options& options) {
  if (options.nodes.empty()) return BadOption("nodes", "empty", "at least one");
  if (options.ttl < absl::ZeroDuration() || options.ttl > absl::Hours(24 * 3650) ||
      (options.ttl > absl::ZeroDuration() && options.ttl < absl::Seconds(1))) {
    return BadOption("ttl", absl::FormatDuration(options.ttl), "0 (for ever), or 1 s to 10 years");
  }
  if (options.budget <= absl::ZeroDuration() || options.budget > absl::Minutes(1)) {
    return BadOption("budget", absl::FormatDuration(options.budget), "more than 0, at most 1 minute");
  }
  // Redis takes no larger values, unless told to.
  if (options.max_value_bytes < 1 || options.max_value_bytes > int64_t{512} << 20) {
    return BadOption("max_value_bytes", absl::StrCat(options.max_value_bytes), "1 to 512 MiB");
  }
  if (options.connections_per_node < 1 || options.connections_per_node > 64) {
    return BadOption("connections_per_node", absl::StrCat(options.connections_per_node), "1 to 64");
  }
  if (!options.user.empty() && options.password.empty()) {
    return BadOption("password", "empty", "a password, with a user");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisTier>> RedisTier::Create(Options options) {
  KVBLEND_RETURN_IF_ERROR(Check(options));
  std::unique_ptr<redis::Transport> transport =
      options.make_transport ? options.make_transport() : redis::MakeSocketTransport();
  if (options.tls.has_value()) {
    KVBLEND_ASSIGN_OR_RETURN(transport, redis::MakeTlsTransport(*options.tls, std::move(transport)));
  }
  redis::ClusterOptions cluster;
  cluster.seeds = options.nodes;
  cluster.node.user = options.user;
  cluster.node.password = options.password;
  cluster.node.read_connections = options.connections_per_node;
  cluster.node.read_stall = options.budget;
  cluster.node.write_stall = options.write_timeout;
  cluster.node.connect_timeout = options.connect_timeout;
  cluster.node.ping_interval = options.ping_interval;
  cluster.node.breaker = options.breaker;
  cluster.node.now = options.now;
  cluster.min_refresh_interval = options.min_refresh_interval;
  const absl::Time connected_by = absl::Now() + options.connect_timeout;
  std::unique_ptr<RedisTier> tier(new RedisTier(
      std::move(options), std::make_unique<redis::ClusterClient>(std::move(cluster), std::move(transport))));
  tier->AwaitAllWorking(connected_by);
  return tier;
}

RedisTier::RedisTier(Options options, std::unique_ptr<redis::ClusterClient> cluster)
    : options_(std::move(options)),
      ttl_seconds_(absl::ToInt64Seconds(options_.ttl)),
      known_(kMaxKnownKeys),
      pending_erasures_(kMaxPendingErasures),
      cluster_(std::move(cluster)) {}

RedisTier::~RedisTier() = default;

// --- commands

std::unique_ptr<redis::Command> RedisTier::MakeCommand(redis::Lane lane,
                                                       const std::vector<std::string>& arguments,
                                                       int64_t max_reply_bytes) {
  auto command = std::make_unique<Command>();
  const std::vector<std::string_view> views(arguments.begin(), arguments.end());
  command->wire = redis::FormatCommand(views);
  command->slot = redis::SlotOf(arguments[1]);
  command->lane = lane;
  command->max_reply_bytes = max_reply_bytes;
  return command;
}

void RedisTier::Send(std::unique_ptr<Command> command) const {
  command->done = [](const absl::StatusOr<Reply>&) {};
  cluster_->Submit(std::move(command)).IgnoreError();
}

absl::StatusOr<redis::Reply> RedisTier::CallOne(std::unique_ptr<Command> command, absl::Time deadline) const {
  Commands commands;
  commands.push_back(std::move(command));
  absl::StatusOr<Reply> reply = std::move(cluster_->Call(std::move(commands), deadline)[0]);
  if (reply.ok() && reply->is_error()) return absl::UnavailableError("Redis answers: " + reply->text);
  return reply;
}

std::vector<std::string> RedisTier::SectionKeys(const ChunkKey& key, int32_t num_layers) {
  const redis::EntryKeys keys(key);
  std::vector<std::string> names;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    names.push_back(keys.K(layer));
    names.push_back(keys.V(layer));
  }
  return names;
}

// --- what is known here

void RedisTier::Remember(const ChunkKey& key, absl::Duration left) const {
  absl::MutexLock lock(&mutex_);
  known_.Insert(key, options_.now() + std::min(left * 0.9, kRemember));
}

void RedisTier::Forget(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  known_.Erase(key);
}

bool RedisTier::Contains(const ChunkKey& key) const {
  absl::MutexLock lock(&mutex_);
  return known_.Contains(key, options_.now());
}

std::vector<ChunkInfo> RedisTier::List(NamespaceFilter /*filter*/,
                                       const std::optional<std::pair<std::string, ChunkKey>>& /*after*/,
                                       int64_t /*limit*/) const {
  return {};
}

absl::Status RedisTier::Pin(NamespaceFilter /*filter*/, const ChunkKey& key) {
  return absl::NotFoundError(absl::StrCat("chunk ", key.ToHex(), ": nothing can be pinned in Redis"));
}

absl::Status RedisTier::Unpin(NamespaceFilter filter, const ChunkKey& key) { return Pin(filter, key); }

RedisTierStats RedisTier::Stats() const {
  const redis::ClusterStats network = cluster_->stats();
  absl::MutexLock lock(&mutex_);
  RedisTierStats stats = stats_;
  for (const redis::NodeStats& node : network.nodes) {
    stats.nodes.push_back({.address = node.address,
                           .state = redis::NameOf(node.state),
                           .breaker_opens = node.times_opened,
                           .connections = node.connections});
    stats.connected |= node.state == redis::NodeState::kWorking;
  }
  stats.breaker_opens = network.breaker_opens;
  stats.timeouts = network.timeouts;
  stats.connection_errors = network.connection_errors;
  stats.protocol_errors = network.protocol_errors;
  stats.error_replies = network.error_replies;
  stats.skipped_commands = network.unavailable;
  stats.moved = network.moved;
  stats.asked = network.asked;
  stats.redirected_too_often = network.redirected_too_often;
  stats.topology_refreshes = network.refreshes;
  stats.failed_topology_refreshes = network.failed_refreshes;
  return stats;
}

}  // namespace kvblend::store
