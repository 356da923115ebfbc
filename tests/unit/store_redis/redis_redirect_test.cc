// Slots that are, or are being, moved: MOVED and ASK.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/fake_redis.h"
#include "tests/unit/store_redis/redis_cluster_fixture.h"

namespace kvblend::store::redis {
namespace {

using ::testing::HasSubstr;

TEST_F(RedisClusterTest, MovedIsFollowedAndTheMapReadAgain) {
  FakeRedis redis(3);
  ClusterOptions options = Options(redis);
  const auto client = Connect(redis, options);
  const std::string key = KeyOf(redis, 0);
  ASSERT_TRUE(Call(*client, {"SET", key, "1"})->is_ok());
  redis.MoveSlots(0, 1);
  EXPECT_EQ(Call(*client, {"GET", key})->text, "1");
  EXPECT_EQ(client->stats().moved, 1);
  EXPECT_TRUE(client->AwaitStats([](const ClusterStats& s) { return s.nodes.size() == 2; }, Soon()));
  EXPECT_EQ(Call(*client, {"GET", key})->text, "1");
  EXPECT_EQ(client->stats().moved, 1);
}

TEST_F(RedisClusterTest, AMovedStormEndsAndDoesNotFloodTheCluster) {
  FakeRedis redis(3);
  ClusterOptions options = Options(redis);
  options.min_refresh_interval = absl::Hours(1);
  const auto client = Connect(redis, options);
  // Every node says that the next one has it.
  redis.SetScript([](int32_t node, const FakeRedis::Arguments& arguments) -> FakeReply {
    if (arguments[0] != "GET") return {};
    return {.execute = false,
            .instead = absl::StrCat("-MOVED 1 ", FakeRedis::EndpointOf((node + 1) % 3).ToString(), "\r\n")};
  });
  const int64_t before = redis.num_commands();
  for (int i = 0; i < 20; ++i) {
    const auto reply = Call(*client, {"GET", absl::StrCat("key", i)});
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(reply.status().message(), HasSubstr("redirected"));
  }
  EXPECT_EQ(redis.num_commands() - before, 20 * (1 + ClusterClient::kMaxHops));
  EXPECT_EQ(client->stats().redirected_too_often, 20);
  EXPECT_EQ(client->stats().topology_refreshes, 1);
  redis.SetScript(nullptr);
  EXPECT_EQ(Call(*client, {"GET", "key1"})->type, Reply::Type::kNil);
}

TEST_F(RedisClusterTest, AskIsFollowedOnceWithAsking) {
  FakeRedis redis(2);
  const auto client = Connect(redis);
  const std::string key = KeyOf(redis, 0);
  redis.Set(key, "old");
  redis.SetScript([](int32_t node, const FakeRedis::Arguments& arguments) -> FakeReply {
    if (node != 0 || arguments[0] == "PING" || arguments[0] == "CLUSTER") return {};
    return {.execute = false,
            .instead = absl::StrCat("-ASK 1 ", FakeRedis::EndpointOf(1).ToString(), "\r\n")};
  });
  // Node 1 does not own the slot and takes the command only because of ASKING.
  EXPECT_TRUE(Call(*client, {"SET", key, "new"})->is_ok());
  EXPECT_EQ(redis.Get(key), "old");
  EXPECT_EQ(Call(*client, {"GET", key})->text, "new");
  EXPECT_EQ(client->stats().asked, 2);
  EXPECT_EQ(client->stats().moved, 0);
}

TEST_F(RedisClusterTest, ARefusedAskingIsCounted) {
  FakeRedis redis(2);
  const auto client = Connect(redis);
  const std::string key = KeyOf(redis, 0);
  redis.SetScript([](int32_t node, const FakeRedis::Arguments& arguments) -> FakeReply {
    if (arguments[0] == "ASKING") {
      return {.execute = false, .instead = "-NOPERM this user has no permissions to run 'asking'\r\n"};
    }
    if (node != 0 || arguments[0] == "PING" || arguments[0] == "CLUSTER") return {};
    return {.execute = false,
            .instead = absl::StrCat("-ASK 1 ", FakeRedis::EndpointOf(1).ToString(), "\r\n")};
  });
  EXPECT_FALSE(Call(*client, {"GET", key}).ok());
  EXPECT_GE(client->stats().error_replies, 1);
  redis.SetScript(nullptr);
  EXPECT_EQ(Call(*client, {"GET", key})->type, Reply::Type::kNil) << "the connection lives on";
}

}  // namespace
}  // namespace kvblend::store::redis
