#include "engine/store/redis/redis_cluster.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "engine/store/redis/redis_entry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/fake_redis.h"
#include "tests/unit/store_redis/redis_cluster_fixture.h"

namespace kvblend::store::redis {
namespace {

using ::testing::HasSubstr;

TEST_F(RedisClusterTest, CommandsGoToTheNodeOfTheirSlot) {
  FakeRedis redis(3);
  const auto client = Connect(redis);
  for (int i = 0; i < 100; ++i) {
    const std::string key = absl::StrCat("key", i);
    ASSERT_TRUE(Call(*client, {"SET", key, absl::StrCat("value", i)})->is_ok());
    EXPECT_EQ(Call(*client, {"GET", key})->text, absl::StrCat("value", i));
  }
  EXPECT_EQ(client->stats().moved, 0);
  EXPECT_EQ(client->stats().nodes.size(), 3);
}

TEST_F(RedisClusterTest, AServerWithoutClusterSupportHasAllSlots) {
  FakeRedis redis(0);
  const auto client = Connect(redis);
  EXPECT_TRUE(Call(*client, {"SET", "a", "1"})->is_ok());
  EXPECT_EQ(Call(*client, {"GET", "a"})->text, "1");
  EXPECT_EQ(client->stats().nodes.size(), 1);
}

TEST_F(RedisClusterTest, RepliesOfManyCommandsInFlightAreNotMixedUp) {
  FakeRedis redis(3);
  const auto client = Connect(redis);
  std::vector<std::unique_ptr<Command>> commands;
  constexpr int kCommands = 2000;
  for (int i = 0; i < kCommands; ++i) redis.Set(absl::StrCat("key", i), absl::StrCat("value", i));
  commands.reserve(kCommands);
  for (int i = 0; i < kCommands; ++i) commands.push_back(MakeCommand({"GET", absl::StrCat("key", i)}));
  const auto replies = client->Call(std::move(commands), absl::InfiniteFuture());
  for (int i = 0; i < kCommands; ++i) {
    ASSERT_TRUE(replies[i].ok()) << replies[i].status();
    ASSERT_EQ(replies[i]->text, absl::StrCat("value", i));
  }
}

TEST_F(RedisClusterTest, HeadersAskedForTogetherGoOutWithoutWaitingForEachOther) {
  FakeRedis redis(1);
  ClusterOptions options = Options(redis);
  options.node.read_connections = 1;
  absl::Notification submitted;
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> asking = false;
  options.node.now = [&] {  // the caller looks at the clock when it has submitted everything
    if (asking && std::this_thread::get_id() == caller && !submitted.HasBeenNotified()) submitted.Notify();
    return redis.clock().Now();
  };
  const auto client = Connect(redis, options);
  std::atomic<int> unanswered = 0;
  redis.SetScript([&](int32_t, const FakeRedis::Arguments& arguments) {
    if (arguments[0] != "GET") return FakeReply{};
    if (!submitted.HasBeenNotified()) {
      submitted.WaitForNotification();
      return FakeReply{};
    }
    ++unanswered;
    return CutReply(0, FakeReply::Then::kGoOn);
  });
  std::vector<ChunkKey> keys;
  for (int32_t i = 0; i < 10; ++i) keys.push_back(SmallAddress(i).key);
  asking = true;
  ReadHeaders(*client, keys, redis.clock().Now() + absl::Hours(1));
  EXPECT_GE(unanswered, 9) << "of ten; the first was answered, unless it went out with the others";
}

TEST_F(RedisClusterTest, ErrorsThatRedisAnswersAreSaidOnceOfEachKind) {
  FakeRedis redis(1);
  const auto client = Connect(redis);
  redis.SetScript([](int32_t, const FakeRedis::Arguments& arguments) {
    FakeReply reply;
    if (arguments[0] == "SET") reply.instead = "-NOPERM no permissions for '\x1b" + arguments[2] + "'\r\n";
    if (arguments[0] == "GET") reply.instead = "-OOM command not allowed\r\n";
    return reply;
  });
  std::ostringstream out;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out)));
  const auto lines = [&] {
    std::string text = out.str();
    out.str("");
    return text;
  };
  EXPECT_TRUE(Call(*client, {"SET", "a", "1"})->is_error());
  EXPECT_THAT(lines(), HasSubstr("node 10.0.0.0:7000 refuses commands; going on without what they are for: "
                                 "NOPERM no permissions for '?1'"));
  EXPECT_TRUE(Call(*client, {"SET", "a", "2"})->is_error());
  EXPECT_EQ(lines(), "");
  EXPECT_TRUE(Call(*client, {"GET", "a"})->is_error());
  EXPECT_THAT(lines(), HasSubstr("OOM command not allowed"));
  redis.clock().Advance(absl::Minutes(11));
  EXPECT_TRUE(Call(*client, {"SET", "a", "3"})->is_error());
  EXPECT_THAT(lines(), HasSubstr("NOPERM"));
  spdlog::set_default_logger(before);
}

TEST_F(RedisClusterTest, PasswordsAreForUsersOrForAll) {
  for (const std::string user : {"", "kvblend"}) {
    FakeRedis redis(2);
    redis.RequirePassword(user, "secret");
    ClusterOptions options = Options(redis);
    options.node.user = user;
    options.node.password = "secret";
    EXPECT_TRUE(Call(*Connect(redis, options), {"SET", "a", "1"})->is_ok());
    options.node.password = "wrong";
    ClusterClient refused(options, redis.NewTransport());
    EXPECT_TRUE(
        refused.AwaitStats([](const ClusterStats& s) { return s.failed_topology_refreshes > 0; }, Soon()));
    EXPECT_EQ(Call(refused, {"GET", "a"}).status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(RedisClusterTest, ErrorRepliesAreRepliesAndTheConnectionLivesOn) {
  FakeRedis redis(1);
  const auto client = Connect(redis);
  for (const std::string error : {"CLUSTERDOWN The cluster is down", "TRYAGAIN Multiple keys request",
                                  "LOADING Redis is loading the dataset in memory", "ERR whatever",
                                  "MOVED nowhere", "OOM command not allowed"}) {
    redis.ReplyTo("GET", {.execute = false, .instead = "-" + error + "\r\n"});
    const auto reply = Call(*client, {"GET", "key"});
    ASSERT_TRUE(reply.ok());
    EXPECT_EQ(reply->text, error);
  }
  EXPECT_EQ(client->stats().error_replies, 6);
  EXPECT_EQ(client->stats().nodes[0].times_opened, 0);
}

TEST_F(RedisClusterTest, ANodeThatStallsIsWaitedForOnceThenLeftAlone) {
  FakeRedis redis(2);
  const auto client = Connect(redis);
  redis.SetScript([](int32_t node, const FakeRedis::Arguments&) {
    return node == 0 ? CutReply(0, FakeReply::Then::kStall, /*execute=*/false) : FakeReply{};
  });
  const absl::Time before = redis.clock().Now();
  std::vector<std::unique_ptr<Command>> commands;
  for (int i = 0; i < 50; ++i) commands.push_back(MakeCommand({"GET", absl::StrCat("key", i)}));
  const auto replies = client->Call(std::move(commands), absl::InfiniteFuture());
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(replies[i].ok(), redis.NodeOf(absl::StrCat("key", i)) == 1) << replies[i].status();
  }
  // All connections share the clock, and connecting anew may move it further.
  EXPECT_GE(redis.clock().Now() - before, kBudget);
  EXPECT_GE(client->stats().timeouts, 1);

  // From now on it costs nothing: no command, no time.
  const std::string key = KeyOf(redis, 0);
  ASSERT_TRUE(client->AwaitStats(
      [](const ClusterStats& stats) {
        return std::any_of(stats.nodes.begin(), stats.nodes.end(),
                           [](const NodeStats& node) { return node.state == NodeState::kDown; });
      },
      Soon()));
  const absl::Time later = redis.clock().Now();
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(Call(*client, {"GET", key}).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(redis.clock().Now(), later);
  EXPECT_TRUE(Call(*client, {"GET", KeyOf(redis, 1)}).ok());

  redis.SetScript(nullptr);
  Recover(redis, *client);
  EXPECT_TRUE(Call(*client, {"GET", key}).ok());
}

/// Passes bytes on one at a time, every 20 ms of the fake clock, once `trickles` is set.
class TricklingTransport : public Transport {
 public:
  TricklingTransport(FakeRedis& redis, const std::atomic<bool>& trickles)
      : redis_(redis), trickles_(trickles), inner_(redis.NewTransport()) {}

  absl::StatusOr<std::unique_ptr<redis::Connection>> Connect(const Endpoint& endpoint,
                                                             absl::Time deadline) override {
    auto inner = inner_->Connect(endpoint, deadline);
    if (!inner.ok()) return inner;
    return std::make_unique<Connection>(*this, *std::move(inner));
  }

 private:
  class Connection : public redis::Connection {
   public:
    Connection(TricklingTransport& transport, std::unique_ptr<redis::Connection> inner)
        : transport_(transport), inner_(std::move(inner)) {}
    absl::StatusOr<size_t> Read(absl::Span<std::byte> buffer, absl::Time deadline) override {
      if (!transport_.trickles_) return inner_->Read(buffer, deadline);
      FakeClock& clock = transport_.redis_.clock();
      const absl::Time at = clock.Now() + absl::Milliseconds(20);
      clock.AdvanceTo(std::min(at, deadline));
      if (at > deadline) return absl::DeadlineExceededError("no byte in time");
      return inner_->Read(buffer.first(1), deadline);
    }
    absl::Status Write(absl::Span<const std::byte> bytes, absl::Time deadline) override {
      return inner_->Write(bytes, deadline);
    }

   private:
    TricklingTransport& transport_;
    const std::unique_ptr<redis::Connection> inner_;
  };

  FakeRedis& redis_;
  const std::atomic<bool>& trickles_;
  const std::unique_ptr<Transport> inner_;
};

TEST_F(RedisClusterTest, ANodeThatTricklesIsGivenUp) {
  FakeRedis redis(1);
  redis.Set("key", std::string(1000, 'v'));
  std::atomic<bool> trickles{false};
  ClusterOptions options = Options(redis);
  options.node.breaker = {.min_backoff = absl::Hours(1), .max_backoff = absl::Hours(1)};
  ClusterClient client(options, std::make_unique<TricklingTransport>(redis, trickles));
  ASSERT_TRUE(client.AwaitAllWorking(Soon()));
  trickles = true;
  EXPECT_EQ(Call(client, {"GET", "key"}).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Call(client, {"GET", "key"}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RedisClusterTest, WhatFailsOnTheNetworkFailsTheCommandsAndHeals) {
  FakeRedis redis(1);
  redis.Set("key", std::string(100'000, 'v'));
  const auto client = Connect(redis);
  struct Fault {
    const char* name;
    FakeReply reply;
  };
  using Then = FakeReply::Then;
  for (const Fault& fault :
       {Fault{"reset before", CutReply(0, Then::kReset)},
        Fault{"reset half way", CutReply(50'000, Then::kReset)},
        Fault{"stall half way", CutReply(50'000, Then::kStall)},
        Fault{"garbage", {.execute = false, .instead = "garbage\r\n"}},
        Fault{"too long", {.execute = false, .instead = "$99999999\r\n" + std::string(600'000, 'x')}},
        Fault{"too many", {.execute = false, .instead = "*99999999\r\n"}},
        Fault{"unasked", {.execute = false, .instead = "$1\r\nv\r\n$1\r\nw\r\n+more\r\n"}}}) {
    redis.ReplyTo("GET", fault.reply);
    auto command = MakeCommand({"GET", "key"});
    command->max_reply_bytes = 110'000;
    const auto reply = Call(*client, std::move(command));
    EXPECT_EQ(reply.ok(), fault.name == std::string("unasked")) << fault.name;
    ASSERT_TRUE(client->AwaitStats(
        [](const ClusterStats& stats) { return stats.nodes[0].state != NodeState::kWorking; }, Soon()))
        << fault.name;
    redis.SetScript(nullptr);
    Recover(redis, *client);
    ASSERT_EQ(Call(*client, {"GET", "key"})->text, std::string(100'000, 'v')) << fault.name;
  }
  const ClusterStats stats = client->stats();
  EXPECT_EQ(stats.nodes[0].times_opened, 7);
  EXPECT_GE(stats.protocol_errors, 4);
  EXPECT_GE(stats.connection_errors, 2);
  EXPECT_GE(stats.timeouts, 1);
}

TEST_F(RedisClusterTest, ANodeThatDiesIsLeftAloneUntilItIsBack) {
  for (const auto fault : {FakeRedis::ConnectFault::kRefused, FakeRedis::ConnectFault::kTimeout}) {
    FakeRedis redis(3);
    const auto client = Connect(redis);
    const std::string key = KeyOf(redis, 2);
    redis.Kill(2);
    redis.SetConnectFault(2, fault);
    EXPECT_FALSE(Call(*client, {"GET", key}).ok());
    EXPECT_FALSE(Call(*client, {"GET", key}).ok());
    EXPECT_TRUE(Call(*client, {"GET", KeyOf(redis, 0)}).ok());
    redis.Revive(2);
    Recover(redis, *client);
    const auto reply = Call(*client, {"GET", key});
    EXPECT_TRUE(reply.ok()) << reply.status();
  }
}

TEST_F(RedisClusterTest, ItStartsWithoutRedisAndFindsItLater) {
  FakeRedis redis(2);
  redis.Kill(0);
  redis.Kill(1);
  ClusterClient client(Options(redis), redis.NewTransport());
  ASSERT_TRUE(
      client.AwaitStats([](const ClusterStats& s) { return s.failed_topology_refreshes > 0; }, Soon()));
  EXPECT_EQ(Call(client, {"GET", "key"}).status().code(), absl::StatusCode::kUnavailable);
  // Those that it was told of do not work, which an operator must be able to see.
  const ClusterStats before = client.stats();
  EXPECT_FALSE(before.has_topology);
  ASSERT_EQ(before.nodes.size(), 2);
  for (const NodeStats& node : before.nodes) EXPECT_NE(node.state, NodeState::kWorking);
  redis.Revive(0);
  redis.Revive(1);
  EXPECT_TRUE(client.AwaitAllWorking(Soon()));
  EXPECT_TRUE(Call(client, {"GET", "key"}).ok());
}

/// Holds the GET of the key "first" until it may go on, and keeps the order of all keys that are asked for.
struct HeldNode {
  explicit HeldNode(FakeRedis& redis) {
    redis.SetScript([this](int32_t, const FakeRedis::Arguments& arguments) -> FakeReply {
      if (arguments[0] != "GET") return {};
      if (arguments[1] == "first") {
        started.Notify();
        go_on.WaitForNotification();
      }
      order.push_back(arguments[1]);
      return {};
    });
  }

  absl::Notification started, go_on;
  std::vector<std::string> order;  // complete when all have been answered
};

TEST_F(RedisClusterTest, LookupsGoBeforeLayersAndLayersByPromptAndLayer) {
  FakeRedis redis(1);
  ClusterOptions options = Options(redis);
  options.node.read_connections = 1;
  options.node.max_commands_in_flight = 1;
  const auto client = Connect(redis, options);
  HeldNode node(redis);
  absl::Mutex mutex;
  int missing = 8;
  std::vector<absl::Status> cancelled;
  const auto submit = [&](const std::string& key, CommandPriority priority, uint64_t id) {
    auto command = MakeCommand({"GET", key});
    command->priority = priority;
    command->id = id;
    command->done = [&](absl::StatusOr<Reply> reply) {
      absl::MutexLock lock(&mutex);
      if (!reply.ok()) cancelled.push_back(reply.status());
      --missing;
    };
    ASSERT_TRUE(client->Submit(std::move(command)).ok());
  };
  submit("first", {.bulk = true, .read = {{ReadFor::kPrompt, 0}, 0}}, 1);
  node.started.WaitForNotification();
  submit("p2 l0", {.bulk = true, .read = {{ReadFor::kPrompt, 2}, 0}}, 2);
  submit("p1 l1", {.bulk = true, .read = {{ReadFor::kPrompt, 1}, 1}}, 3);
  submit("p1 l0", {.bulk = true, .read = {{ReadFor::kPrompt, 1}, 0}}, 4);
  submit("unwanted", {.bulk = true, .read = {{ReadFor::kPrompt, 1}, 0}}, 5);
  submit("lookup", {}, 6);
  submit("prefetched", {.bulk = true, .read = {{ReadFor::kPrefetch, 0}, 0}}, 8);
  submit("p1 l0 too", {.bulk = true, .read = {{ReadFor::kPrompt, 1}, 0}}, 7);
  client->Cancel(5);
  client->Cancel(1);  // on its way: nothing happens
  client->Cancel(99);
  node.go_on.Notify();
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(
      +[](int* left) { return *left == 0; }, &missing));
  EXPECT_THAT(node.order, ::testing::ElementsAre("first", "lookup", "p1 l0", "p1 l0 too", "p1 l1", "p2 l0",
                                                 "prefetched"));
  ASSERT_EQ(cancelled.size(), 1);
  EXPECT_EQ(cancelled[0].code(), absl::StatusCode::kCancelled);
}

TEST_F(RedisClusterTest, WhatIsRaisedGoesFirstAndWhereTooManyWaitTheLastGoes) {
  FakeRedis redis(1);
  ClusterOptions options = Options(redis);
  options.node.read_connections = 1;
  options.node.max_commands_in_flight = 1;
  options.node.max_waiting = 3;
  const auto client = Connect(redis, options);
  HeldNode node(redis);
  absl::Mutex mutex;
  int missing = 0;
  std::vector<std::string> dropped;
  const auto submit = [&](const std::string& key, Reader reader, uint64_t id) {
    auto command = MakeCommand({"GET", key});
    command->priority = {.bulk = true, .read = {reader, 0}};
    command->id = id;
    command->done = [&, key](absl::StatusOr<Reply> reply) {
      absl::MutexLock lock(&mutex);
      if (absl::IsResourceExhausted(reply.status())) dropped.push_back(key);
      --missing;
    };
    absl::Status status = client->Submit(std::move(command));
    absl::MutexLock lock(&mutex);
    missing += status.ok() ? 1 : 0;
    return status;
  };
  ASSERT_TRUE(submit("first", {ReadFor::kPrompt, 1}, 1).ok());
  node.started.WaitForNotification();
  EXPECT_TRUE(submit("one", {ReadFor::kPrefetch, 1}, 2).ok());
  EXPECT_TRUE(submit("two", {ReadFor::kPrefetch, 2}, 3).ok());
  EXPECT_TRUE(submit("three", {ReadFor::kPrefetch, 3}, 4).ok());
  EXPECT_EQ(submit("four", {ReadFor::kPrefetch, 4}, 5).code(), absl::StatusCode::kResourceExhausted);
  client->Raise(4, {.bulk = true, .read = {{ReadFor::kPrompt, 2}, 0}});
  client->Raise(2, {.bulk = true, .read = {{ReadFor::kNobody}, 0}});  // it is further ahead already
  EXPECT_TRUE(submit("five", {ReadFor::kPrompt, 3}, 6).ok());
  client->Raise(3, {});  // is waiting no more
  node.go_on.Notify();
  absl::MutexLock lock(&mutex);
  mutex.Await(absl::Condition(
      +[](int* left) { return *left == 0; }, &missing));
  EXPECT_THAT(node.order, ::testing::ElementsAre("first", "three", "five", "one"));
  EXPECT_THAT(dropped, ::testing::ElementsAre("two"));
}

TEST_F(RedisClusterTest, EndingCancelsWhatWaits) {
  FakeRedis redis(1);
  ClusterOptions options = Options(redis);
  options.node.read_connections = 1;
  options.node.max_commands_in_flight = 1;
  auto client = Connect(redis, options);
  absl::Notification started;
  absl::Notification go_on;
  redis.SetScript([&](int32_t, const FakeRedis::Arguments& arguments) -> FakeReply {
    if (arguments[0] != "GET") return {};
    if (!started.HasBeenNotified()) started.Notify();
    go_on.WaitForNotification();
    return {};
  });
  std::atomic<int> finished{0};
  for (int i = 0; i < 10; ++i) {
    auto command = MakeCommand({"GET", "key"});
    command->done = [&](const absl::StatusOr<Reply>&) { ++finished; };
    ASSERT_TRUE(client->Submit(std::move(command)).ok());
  }
  started.WaitForNotification();
  std::thread ending([&] { client.reset(); });
  go_on.Notify();
  ending.join();
  EXPECT_EQ(finished, 10);
}

}  // namespace
}  // namespace kvblend::store::redis
