// The tier with real redis-server processes: a cluster of three, passwords, TLS.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/store/redis/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/redis_server.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store {
namespace {

using test_support::TemporaryFolder;
using ::testing::HasSubstr;

constexpr int32_t kChunks = 30;

/// On a busy machine a sound node may well take longer than the default budget.
RedisTier::Options TierOptions(std::vector<redis::Endpoint> nodes) {
  RedisTier::Options options;
  options.nodes = std::move(nodes);
  options.budget = absl::Seconds(10);
  options.write_timeout = absl::Seconds(10);
  options.connect_timeout = absl::Seconds(10);
  options.min_refresh_interval = absl::Milliseconds(10);
  options.breaker = {.min_backoff = absl::Milliseconds(10), .max_backoff = absl::Milliseconds(100)};
  return options;
}

using RealRedisTest = QuietRedisTest;

TEST_F(RealRedisTest, ServersShareAClusterThroughMovedSlotsAndADeadNode) {
  RedisServerCluster cluster;
  const auto one = OpenTier(TierOptions({cluster.endpoints()[1]}));
  const auto other = OpenTier(TierOptions(cluster.endpoints()));
  for (int32_t i = 0; i < kChunks; ++i) ASSERT_TRUE(Put(*one, SmallAddress(i, 8 + i)).ok());
  for (int32_t i = 0; i < kChunks; ++i) {
    const absl::Status status = ReadAndCompare(*other, SmallAddress(i, 8 + i));
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(other->FindAnyAnchor({SmallAddress(i, 8 + i).content_key}, absl::InfiniteFuture())[0]->key,
              SmallAddress(i, 8 + i).key);
  }
  EXPECT_EQ(one->Stats().nodes, 3);
  EXPECT_EQ(other->Stats().moved, 0);

  // The slot of one entry is on its way to another node: ASK for what has gone, TRYAGAIN for what is split.
  const ChunkAddress address = SmallAddress(0, 8);
  const redis::EntryKeys names(address.key);
  const int32_t slot = redis::SlotOf(names.Header());
  const int32_t from = slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2;
  RedisServer& source = cluster.node(from);
  RedisServer& target = cluster.node((from + 1) % 3);
  const std::string source_id = source.Call({"CLUSTER", "MYID"})->text;
  const std::string target_id = target.Call({"CLUSTER", "MYID"})->text;
  const std::string number = absl::StrCat(slot);
  ASSERT_TRUE(target.Call({"CLUSTER", "SETSLOT", number, "IMPORTING", source_id})->is_ok());
  ASSERT_TRUE(source.Call({"CLUSTER", "SETSLOT", number, "MIGRATING", target_id})->is_ok());
  const std::string port = absl::StrCat(target.endpoint().port);
  const auto migrate = [&](const std::string& key) {
    EXPECT_TRUE(source.Call({"MIGRATE", "127.0.0.1", port, key, "0", "60000"})->is_ok()) << key;
  };
  EXPECT_TRUE(ReadAndCompare(*other, address).ok());
  migrate(names.K(0));
  ReadAndCompare(*other, address).IgnoreError();  // a layer that is split can't be read now
  for (const std::string& key : {names.V(0), names.K(1), names.V(1), names.Header()}) migrate(key);
  const absl::Status asked = ReadAndCompare(*other, address);
  EXPECT_TRUE(asked.ok()) << asked;
  EXPECT_GT(other->Stats().asked, 0);
  for (int32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(cluster.node(i).Call({"CLUSTER", "SETSLOT", number, "NODE", target_id})->is_ok());
  }
  const absl::Status moved = ReadAndCompare(*other, address);
  EXPECT_TRUE(moved.ok()) << moved;
  EXPECT_GT(other->Stats().moved, 0);

  // A node dies: what it had is a miss, and what the others have goes once the cluster notices. It comes back
  // empty, and is filled again.
  cluster.node(2).Kill();
  for (int32_t round = 0; round < 3; ++round) {
    for (int32_t i = 0; i < kChunks; ++i) ReadAndCompare(*other, SmallAddress(i, 8 + i)).IgnoreError();
  }
  EXPECT_GT(other->Stats().breaker_opens, 0);
  cluster.node(2).Restart();
  cluster.AwaitOk();
  ASSERT_TRUE(one->AwaitAllWorking(Soon()));
  ASSERT_TRUE(other->AwaitAllWorking(Soon()));
  for (int32_t i = 0; i < kChunks; ++i) {
    // A connection that has not noticed yet may cost the first try.
    if (!Put(*one, SmallAddress(i, 8 + i)).ok()) {
      ASSERT_TRUE(one->AwaitAllWorking(Soon()));
      EXPECT_TRUE(Put(*one, SmallAddress(i, 8 + i)).ok());
    }
  }
  for (int32_t i = 0; i < kChunks; ++i) {
    const absl::Status status = ReadAndCompare(*other, SmallAddress(i, 8 + i));
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(other->Stats().damaged_entries, 0);
}

TEST_F(RealRedisTest, WhatAFlushTookIsWrittenAgain) {
  const TemporaryFolder folder;
  const RedisServer server(folder, {});
  const auto tier = OpenTier(TierOptions({server.endpoint()}));
  for (int32_t i = 0; i < kChunks; ++i) ASSERT_TRUE(Put(*tier, SmallAddress(i)).ok());
  ASSERT_TRUE(server.Call({"FLUSHALL"})->is_ok());
  EXPECT_TRUE(absl::IsNotFound(OpenNow(*tier, SmallAddress(0).key).status()));
  for (int32_t i = 0; i < kChunks; ++i) {
    ASSERT_FALSE(tier->Contains(SmallAddress(i).key)) << i;
    ASSERT_TRUE(Put(*tier, SmallAddress(i)).ok());
    EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(i)).ok());
  }
}

TEST_F(RealRedisTest, ANodeThatAnswersNothingCostsTheBudget) {
  const TemporaryFolder folder;
  const RedisServer server(folder, {});
  RedisTier::Options options = TierOptions({server.endpoint()});
  options.budget = absl::Milliseconds(200);
  options.connect_timeout = absl::Milliseconds(200);
  const auto tier = OpenTier(options);
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  server.Stop();
  EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kDeadlineExceeded);
  while (tier->Stats().timeouts == 0) std::this_thread::yield();  // who asked may leave a moment before
  EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kUnavailable);
  server.Continue();
  ASSERT_TRUE(tier->AwaitAllWorking(Soon()));
  EXPECT_TRUE(OpenNow(*tier, address.key).ok());
}

TEST_F(RealRedisTest, UsersOfAnAclNeedNoMoreThanTheirRights) {
  const TemporaryFolder folder;
  // What the operator's guide tells to allow.
  const RedisServer server(folder, {.arguments = {"--user",  "kvblend", "on",      ">secret",
                                                  "~kvb1:*", "-@all",   "+ping",   "+cluster|slots",
                                                  "+get",    "+mget",   "+set",    "+exists",
                                                  "+strlen", "+pttl",   "+expire", "+unlink",
                                                  "+zadd",   "+zrange", "+zrem",   "+zremrangebyrank",
                                                  "--user",  "default", "off"}});
  RedisTier::Options options = TierOptions({server.endpoint()});
  options.user = "kvblend";
  options.password = "secret";
  const auto tier = OpenTier(options);
  ASSERT_TRUE(Put(*tier, SmallAddress(1)).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(1)).ok());
  EXPECT_TRUE(tier->FindAnyAnchor({SmallAddress(1).content_key}, absl::InfiniteFuture())[0].has_value());
  EXPECT_TRUE(*tier->Erase(kAllNamespaces, SmallAddress(1).key));
  EXPECT_EQ(tier->Stats().error_replies, 0);
  EXPECT_EQ(tier->Stats().index_errors, 0);

  options.connect_timeout = absl::Milliseconds(100);
  options.password = "wrong";
  auto refused = RedisTier::Create(options);
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ((*refused)->Stats().nodes_working, 0);
  EXPECT_EQ(OpenNow(**refused, SmallAddress(1).key).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RealRedisTest, TlsIsSpokenWithNobodyElse) {
  const TemporaryFolder folder;
  const TestCertificates certificates(folder.path());
  const RedisServer server(folder, {.arguments = {"--requirepass", "secret"},
                                    .tls = true,
                                    .ca_path = certificates.ca_path,
                                    .certificate_path = certificates.certificate_path,
                                    .key_path = certificates.key_path});
  RedisTier::Options options = TierOptions({server.endpoint()});
  options.password = "secret";
  options.tls = redis::TlsOptions{.ca_path = certificates.ca_path,
                                  .certificate_path = certificates.certificate_path,
                                  .key_path = certificates.key_path};
  {
    const auto tier = OpenTier(options);
    const ChunkAddress large = SmallAddress(1, 4000);  // 2 MB a section
    ASSERT_TRUE(Put(*tier, large).ok());
    EXPECT_TRUE(ReadAndCompare(*tier, large).ok());
  }
  const auto transport = [&](const redis::TlsOptions& tls) {
    return *redis::MakeTlsTransport(tls, redis::MakeSocketTransport());
  };
  const auto connect = [&](const redis::TlsOptions& tls) {
    return transport(tls)->Connect(server.endpoint(), Soon()).status();
  };
  EXPECT_TRUE(connect(*options.tls).ok());
  redis::TlsOptions other = *options.tls;
  other.server_name = "redis.example";
  EXPECT_EQ(connect(other).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(connect(other).message(), HasSubstr("mismatch"));
  other = *options.tls;
  other.ca_path = "";  // the system's: none of ours
  EXPECT_EQ(connect(other).code(), absl::StatusCode::kUnauthenticated);
  // Without a certificate of our own the server ends the connection, at the first use at the latest.
  other = *options.tls;
  other.certificate_path = other.key_path = "";
  redis::NodeOptions node;
  node.password = "secret";
  node.connect_timeout = absl::Seconds(10);
  EXPECT_FALSE(redis::ConnectAndAuthenticate(*transport(other), server.endpoint(), node).ok());
  EXPECT_TRUE(redis::ConnectAndAuthenticate(*transport(*options.tls), server.endpoint(), node).ok());

  other = *options.tls;
  other.key_path = "";
  EXPECT_EQ(redis::MakeTlsTransport(other, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
  other.key_path = certificates.ca_path;
  EXPECT_EQ(redis::MakeTlsTransport(other, nullptr).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RealRedisTest, NamesAreResolvedAndNobodyThereIsNoError) {
  const TemporaryFolder folder;
  const RedisServer server(folder, {});
  const auto tier = OpenTier(TierOptions({{"localhost", server.endpoint().port}}));
  EXPECT_TRUE(Put(*tier, SmallAddress(1)).ok());
  RedisTier::Options options = TierOptions({{"no-such-host.invalid", 6379}});
  options.connect_timeout = absl::Milliseconds(100);
  const auto nobody = RedisTier::Create(options);
  ASSERT_TRUE(nobody.ok());
  EXPECT_EQ(Put(**nobody, SmallAddress(1)).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace kvblend::store
