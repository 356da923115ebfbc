// Networks and nodes that fail: nothing wrong is served, nobody waits longer than the budget, and all heals.
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store {
namespace {

using Then = FakeReply::Then;

bool IsOfTheConnection(const FakeRedis::Arguments& arguments) {
  return arguments[0] == "PING" || arguments[0] == "CLUSTER" || arguments[0] == "AUTH";
}

using RedisTierFaultsTest = RedisTierTest;

TEST_F(RedisTierFaultsTest, AStalledNodeCostsAPromptTheBudgetAndTheNextOneNothing) {
  FakeRedis redis(1);  // one node: what several are waited for at the same time would add up on this clock
  RedisTier::Options options = TierOptions(redis);
  options.ttl = absl::ZeroDuration();
  options.connections_per_node = 1;
  options.breaker = {.min_backoff = absl::Hours(1), .max_backoff = absl::Hours(1)};
  const auto tier = OpenTier(options);
  std::vector<ChunkKey> keys;
  for (int32_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(Put(*tier, SmallAddress(i)).ok());
    keys.push_back(SmallAddress(i).key);
  }
  redis.SetScript([](int32_t, const FakeRedis::Arguments& arguments) {
    return IsOfTheConnection(arguments) ? FakeReply{} : CutReply(0, Then::kStall, /*execute=*/false);
  });
  const absl::Time before = redis.clock().Now();
  for (const auto& entry : tier->OpenEntries(keys, absl::InfiniteFuture())) EXPECT_FALSE(entry.ok());
  while (tier->Stats().timeouts == 0) std::this_thread::yield();  // the caller may leave before
  EXPECT_EQ(redis.clock().Now() - before, kBudget);
  EXPECT_EQ(tier->Stats().lookup_errors, 20);

  for (int32_t i = 0; i < 50; ++i) {
    for (const auto& entry : tier->OpenEntries(keys, absl::InfiniteFuture())) EXPECT_FALSE(entry.ok());
    EXPECT_FALSE(tier->FindAnyAnchor({SmallAddress(1).content_key}, absl::InfiniteFuture())[0].has_value());
    EXPECT_FALSE(tier->Stat(kAllNamespaces, keys[0]).has_value());
  }
  EXPECT_EQ(tier->Stats().timeouts, 1);
  EXPECT_EQ(redis.clock().Now() - before, kBudget);
  redis.SetScript(nullptr);
  redis.clock().Advance(absl::Hours(2));
  ASSERT_TRUE(tier->AwaitAllWorking(Soon()));
  for (int32_t i = 0; i < 20; ++i) EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(i)).ok());
}

TEST_F(RedisTierFaultsTest, ALayerThatMakesNoProgressFailsAndTheOthersOfTheNodeWithIt) {
  RedisTier::Options options = TierOptions();
  options.connections_per_node = 1;
  const auto tier = OpenTier(options);
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  const auto entry = *OpenNow(*tier, address.key);
  redis_.ReplyTo("MGET", CutReply(5000, Then::kStall));
  const PageBuffer first(entry->header().layer_bytes());
  const PageBuffer second(entry->header().layer_bytes());
  absl::Notification done[2];
  const auto read = [&](int32_t layer, const PageBuffer& buffer) {
    const auto id = entry->ReadLayer(layer, buffer.bytes(), {{ReadFor::kPrompt, 1}, layer},
                                     [&done, layer](const absl::Status& status) {
                                       EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
                                       done[layer].Notify();
                                     });
    if (!id.ok()) done[layer].Notify();  // the node has failed already
  };
  read(0, first);
  read(1, second);
  done[0].WaitForNotification();
  done[1].WaitForNotification();
  EXPECT_EQ(ReadLayerNow(*entry, 0, first.bytes()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier->Stats().damaged_entries, 0);  // a network's failure says nothing of the entry
  Recover(*tier);
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

TEST_F(RedisTierFaultsTest, ErrorsOfTheClusterAreMissesAndNothingIsRemoved) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  for (const std::string error :
       {"-CLUSTERDOWN The cluster is down\r\n",
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        "-LOADING Redis is loading the dataset in memory\r\n", "-ERR something\r\n", "-NOPERM no\r\n",
        "-MASTERDOWN Link with MASTER is down\r\n", "-MOVED 1 10.0.0.77:7000\r\n", "-ASK x y\r\n"}) {
    for (const std::string command : {"GET", "MGET", "EXISTS", "ZRANGE", "SET"}) {
      redis_.ReplyTo(command, {.execute = false, .instead = error});
      const absl::Status status = ReadAndCompare(*tier, address);
      EXPECT_EQ(status.ok(), command != "GET" && command != "MGET") << error << status;
      EXPECT_FALSE(absl::IsNotFound(status) || absl::IsDataLoss(status)) << error << status;
      Put(*tier, SmallAddress(2)).IgnoreError();
      tier->FindAnyAnchor({address.content_key}, absl::InfiniteFuture());
    }
  }
  redis_.SetScript(nullptr);
  EXPECT_EQ(NumKeysOf(address), 5);
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

TEST_F(RedisTierFaultsTest, RepliesThatAreRespButNotTheRightOnesHarmNobody) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  for (const std::string reply :
       {"+OK\r\n", ":1\r\n", ":-1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "$0\r\n\r\n", "$3\r\nabc\r\n",
        "*2\r\n$-1\r\n$-1\r\n", "*2\r\n:1\r\n:2\r\n", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n",
        "*1\r\n*1\r\n*0\r\n", ":9223372036854775807\r\n"}) {
    for (const std::string command :
         {"GET", "PTTL", "STRLEN", "MGET", "EXISTS", "ZRANGE", "SET", "UNLINK", "ZADD"}) {
      redis_.SetScript(nullptr);
      Put(*tier, address).IgnoreError();
      redis_.ReplyTo(command, {.execute = true, .instead = reply});
      ReadAndCompare(*tier, address).IgnoreError();  // checks every byte that it gives
      tier->FindAnyAnchor({address.content_key}, absl::InfiniteFuture());
      tier->Stat(kAllNamespaces, address.key);
      Put(*tier, SmallAddress(2)).IgnoreError();
      tier->Erase(kAllNamespaces, SmallAddress(2).key).IgnoreError();
    }
  }
  redis_.SetScript(nullptr);
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

/// Random operations of several servers on one cluster, whose every command may fail in every way: whatever
/// is read is right, and when the faults are over everything works.
TEST_F(RedisTierFaultsTest, UnderRandomFaultsNothingWrongIsServed) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  absl::Mutex mutex;
  std::mt19937 random(seed);
  const auto draw = [&](uint32_t below) {
    absl::MutexLock lock(&mutex);
    return random() % below;
  };
  std::atomic<uint32_t> percent{0};
  std::vector<std::unique_ptr<RedisTier>> tiers;  // their threads use what stands above
  for (int32_t i = 0; i < 2; ++i) tiers.push_back(OpenTier());
  redis_.SetScript([&](int32_t, const FakeRedis::Arguments& arguments) -> FakeReply {
    if (draw(100) >= percent) return {};
    FakeReply reply;
    reply.execute = draw(2) == 0;
    switch (draw(8)) {
      case 0:
        reply.then = Then::kReset;
        break;
      case 1:
        return CutReply(draw(9000), Then::kReset, reply.execute);
      case 2:
        return CutReply(draw(9000), Then::kStall, reply.execute);
      case 3:
        if (!IsOfTheConnection(arguments))
          reply.instead = absl::StrCat("-MOVED 5 ", FakeRedis::EndpointOf(draw(4)).ToString(), "\r\n");
        break;
      case 4:
        if (!IsOfTheConnection(arguments))
          reply.instead = absl::StrCat("-ASK 5 ", FakeRedis::EndpointOf(draw(3)).ToString(), "\r\n");
        break;
      case 5:
        reply.instead = "-CLUSTERDOWN Hash slot not served\r\n";
        break;
      case 6:
        reply.instead = "garbage\r\n";
        break;
      default:
        reply.instead = "$-1\r\n";
    }
    return reply;
  });
  int32_t hits = 0;
  for (int32_t step = 0; step < 3000; ++step) {
    percent = step % 500 < 250 ? 5 : 0;
    RedisTier& tier = *tiers[draw(2)];
    const ChunkAddress address = SmallAddress(static_cast<int32_t>(draw(10)));
    switch (draw(8)) {
      case 0:
      case 1:
        Put(tier, address).IgnoreError();
        break;
      case 2:
        tier.Erase(kAllNamespaces, address.key).IgnoreError();
        break;
      case 3:
        if (const auto match = tier.FindAnyAnchor({address.content_key}, absl::InfiniteFuture())[0]) {
          EXPECT_EQ(match->key, address.key);
        }
        break;
      case 4:
        redis_.clock().Advance(absl::Milliseconds(20));
        break;
      case 5:
        if (draw(20) == 0) {
          const auto node = static_cast<int32_t>(draw(3));
          redis_.Kill(node);
          ReadAndCompare(tier, address).IgnoreError();
          redis_.Revive(node);
        }
        break;
      default:
        hits += ReadAndCompare(tier, address).ok() ? 1 : 0;
    }
  }
  EXPECT_GT(hits, 0);  // a tier that met a fault stays away for a while, in some runs for most of it
  for (const auto& tier : tiers) {
    Recover(*tier);
    // A connection that died while nobody used it is found out by the first command, which fails.
    if (!Put(*tier, SmallAddress(0)).ok()) Recover(*tier);
    for (int32_t i = 0; i < 10; ++i) {
      if (!Put(*tier, SmallAddress(i)).ok()) Recover(*tier);
      ASSERT_TRUE(Put(*tier, SmallAddress(i)).ok());
      // Faults mixed up replies; what they left behind as an entry is found out, removed, and written again.
      if (!ReadAndCompare(*tier, SmallAddress(i)).ok()) {
        AwaitWrites(*tier);
        ASSERT_TRUE(Put(*tier, SmallAddress(i)).ok());
        const absl::Status status = ReadAndCompare(*tier, SmallAddress(i));
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

TEST_F(RedisTierFaultsTest, WhatANodeHeldThatWasAwayIsOfferedAgain) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ChunkAddress elsewhere = address;
  const int32_t node = redis_.NodeOf(KeysOf(address)[0]);
  for (int32_t i = 2; redis_.NodeOf(KeysOf(elsewhere)[0]) == node; ++i) elsewhere = SmallAddress(i);
  ASSERT_TRUE(Put(*tier, address).ok());
  ASSERT_TRUE(Put(*tier, elsewhere).ok());
  ASSERT_TRUE(tier->Contains(address.key));

  redis_.Kill(node);
  EXPECT_FALSE(OpenNow(*tier, address.key).ok());
  EXPECT_FALSE(tier->Contains(address.key));
  EXPECT_TRUE(tier->Contains(elsewhere.key)) << "its node has not failed";
  for (const std::string& key : KeysOf(address)) redis_.Erase(key);
  redis_.Revive(node);
  Recover(*tier);
  EXPECT_FALSE(tier->Contains(address.key));
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(tier->Contains(address.key));
  EXPECT_EQ(NumKeysOf(address), 5);

  // What is still there is not written again.
  redis_.Kill(node);
  EXPECT_FALSE(OpenNow(*tier, address.key).ok());
  redis_.Revive(node);
  Recover(*tier);
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(tier->Contains(address.key));
  EXPECT_EQ(tier->Stats().puts, 3);
}

TEST_F(RedisTierFaultsTest, WhatIsPutAgainStaysThoughItsErasureIsTriedAgainMeanwhile) {
  RedisTier::Options options = TierOptions();
  options.erasure_retry_interval = absl::Microseconds(100);
  const auto tier = OpenTier(options);
  const ChunkAddress address = SmallAddress(1);
  for (int32_t round = 0; round < 100; ++round) {
    ASSERT_TRUE(Put(*tier, address).ok());
    redis_.ReplyTo("UNLINK", {.execute = false, .instead = "-NOREPLICAS Not enough good replicas.\r\n"});
    ASSERT_FALSE(tier->Erase(kAllNamespaces, address.key).ok());
    redis_.SetScript([](int32_t, const FakeRedis::Arguments& arguments) -> FakeReply {
      // Put asks what is there: time enough for the eraser to begin.
      for (int32_t i = 0; arguments[0] == "EXISTS" && i < 1000; ++i) std::this_thread::yield();
      return {};
    });
    ASSERT_TRUE(Put(*tier, address).ok());
    while (tier->Stats().pending_erasures > 0) std::this_thread::yield();
    AwaitWrites(*tier);
    ASSERT_EQ(NumKeysOf(address), 5) << "in round " << round;
  }
}

TEST_F(RedisTierFaultsTest, ANodeIsAskedAgainThoughTheClockWasSetBack) {
  const auto tier = OpenTier();
  const int32_t node = redis_.NodeOf(KeysOf(SmallAddress(1))[0]);
  redis_.Kill(node);
  EXPECT_FALSE(Put(*tier, SmallAddress(1)).ok());
  redis_.clock().Advance(-absl::Hours(24));
  redis_.Revive(node);
  // A connection that fails only now pauses by the new time, so the clock has to go on; far less than a day.
  bool works = false;
  for (int second = 0; second < 600 && !works; ++second) {
    works = tier->AwaitAllWorking(absl::Now() + absl::Milliseconds(100));
    if (!works) redis_.clock().Advance(absl::Seconds(1));
  }
  ASSERT_TRUE(works);
  EXPECT_TRUE(Put(*tier, SmallAddress(1)).ok());
}

TEST_F(RedisTierFaultsTest, ReadsOfManyThreadsThroughANodeThatDiesAndComesBack) {
  const auto tier = OpenTier();
  constexpr int32_t kChunks = 12;
  for (int32_t i = 0; i < kChunks; ++i) ASSERT_TRUE(Put(*tier, SmallAddress(i)).ok());
  std::atomic<bool> stop{false};
  std::atomic<int64_t> hits{0};
  std::vector<std::thread> threads;
  for (int32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int32_t i = t; !stop; ++i) hits += ReadAndCompare(*tier, SmallAddress(i % kChunks)).ok() ? 1 : 0;
    });
  }
  for (int32_t round = 0; round < 6; ++round) {
    const int64_t seen = hits;
    const auto node = round % 3;
    redis_.Kill(node);
    while (hits < seen + 20) std::this_thread::yield();  // those of the other nodes
    redis_.Revive(node);
    redis_.clock().Advance(absl::Seconds(1));
    ASSERT_TRUE(tier->AwaitAllWorking(Soon()));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (int32_t i = 0; i < kChunks; ++i) EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(i)).ok());
  EXPECT_EQ(tier->Stats().damaged_entries, 0);
}

}  // namespace
}  // namespace kvblend::store
