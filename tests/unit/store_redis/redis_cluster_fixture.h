// A client of a cluster of FakeRedis nodes.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/store/redis/redis_cluster.h"
#include "gtest/gtest.h"
#include "tests/support/fake_redis.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store::redis {

inline constexpr absl::Duration kBudget = absl::Milliseconds(50);

class RedisClusterTest : public QuietRedisTest {
 protected:
  ClusterOptions Options(FakeRedis& redis) {
    ClusterOptions options;
    options.seeds = {{"10.0.0.99", 7000}, FakeRedis::EndpointOf(0)};  // the first is not there
    options.node.read_stall = kBudget;
    options.node.ping_interval = absl::InfiniteDuration();
    options.node.breaker = {.min_backoff = absl::Milliseconds(10), .max_backoff = absl::Milliseconds(20)};
    options.node.now = [&redis] { return redis.clock().Now(); };
    options.min_refresh_interval = absl::Milliseconds(1);
    return options;
  }
  std::unique_ptr<ClusterClient> Connect(FakeRedis& redis) { return Connect(redis, Options(redis)); }
  std::unique_ptr<ClusterClient> Connect(FakeRedis& redis, const ClusterOptions& options) {
    auto client = std::make_unique<ClusterClient>(options, redis.NewTransport());
    EXPECT_TRUE(client->AwaitAllWorking(Soon()));
    return client;
  }

  static std::unique_ptr<Command> MakeCommand(std::initializer_list<std::string_view> arguments) {
    auto command = std::make_unique<Command>();
    command->wire = FormatCommand(arguments);
    command->slot = SlotOf(*(arguments.begin() + 1));
    return command;
  }
  static absl::StatusOr<Reply> Call(ClusterClient& client,
                                    std::initializer_list<std::string_view> arguments) {
    return Call(client, MakeCommand(arguments));
  }
  static absl::StatusOr<Reply> Call(ClusterClient& client, std::unique_ptr<Command> command) {
    std::vector<std::unique_ptr<Command>> commands;
    commands.push_back(std::move(command));
    return client.Call(std::move(commands), absl::InfiniteFuture())[0];
  }
  /// Lets the clock run until the nodes' back-off is over and all work again.
  static void Recover(FakeRedis& redis, ClusterClient& client) {
    redis.clock().Advance(absl::Seconds(1));
    EXPECT_TRUE(client.AwaitAllWorking(Soon()));
  }
  static std::string KeyOf(FakeRedis& redis, int32_t node) {
    for (int i = 0;; ++i) {
      std::string key = absl::StrCat("key", i);
      if (redis.NodeOf(key) == node) return key;
    }
  }
};

}  // namespace kvblend::store::redis
