// A Redis tier over a cluster in this process, whose every command can fail.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/store/redis/redis_keys.h"
#include "engine/store/redis/redis_tier.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"
#include "tests/support/fake_redis.h"
#include "tests/unit/store/entry_reading.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {

/// For what must happen: reached only when the test fails.
inline absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

inline absl::Status Put(RedisTier& tier, const ChunkAddress& address,
                        const RedisTier::PutOptions& options = {}) {
  return tier.Put(address, *FilledKv(address), options);
}

/// Logs nothing: there are many failures, on purpose.
class QuietRedisTest : public ::testing::Test {
 protected:
  QuietRedisTest() { spdlog::set_level(spdlog::level::off); }
  ~QuietRedisTest() override { spdlog::set_level(spdlog::level::info); }

  static std::unique_ptr<RedisTier> OpenTier(const RedisTier::Options& options) {
    auto tier = RedisTier::Create(options);
    EXPECT_TRUE(tier.ok()) << tier.status();
    EXPECT_TRUE((*tier)->AwaitAllWorking(Soon()));
    return *std::move(tier);
  }
};

class RedisTierTest : public QuietRedisTest {
 protected:
  static constexpr absl::Duration kBudget = absl::Milliseconds(50);
  static constexpr absl::Duration kTtl = absl::Hours(1);

  static RedisTier::Options TierOptions(FakeRedis& redis) {
    return {.nodes = {FakeRedis::EndpointOf(0)},
            .ttl = kTtl,
            .budget = kBudget,
            .connect_timeout = absl::Seconds(5),
            .ping_interval = absl::InfiniteDuration(),
            .min_refresh_interval = absl::Milliseconds(1),
            .erasure_retry_interval = absl::InfiniteDuration(),
            .breaker = {.min_backoff = absl::Milliseconds(10), .max_backoff = absl::Milliseconds(20)},
            .make_transport = [&redis] { return redis.NewTransport(); },
            .now = [&redis] { return redis.clock().Now(); }};
  }
  RedisTier::Options TierOptions() { return TierOptions(redis_); }
  using QuietRedisTest::OpenTier;
  std::unique_ptr<RedisTier> OpenTier() { return OpenTier(TierOptions()); }
  /// Faults are over; lets the clock run until the nodes' back-off is too.
  void Recover(RedisTier& tier) {
    redis_.SetScript(nullptr);
    redis_.clock().Advance(absl::Seconds(1));
    EXPECT_TRUE(tier.AwaitAllWorking(Soon()));
  }
  /// What was sent and not waited for has been done: one connection writes, in order.
  void AwaitWrites(RedisTier& tier) {
    std::set<int32_t> nodes;
    for (int32_t i = 10'000; nodes.size() < 3; ++i) {
      if (!nodes.insert(redis_.NodeOf(KeysOf(SmallAddress(i))[0])).second) continue;
      EXPECT_TRUE(tier.Erase(kAllNamespaces, SmallAddress(i).key).ok());
    }
  }
  static std::vector<std::string> KeysOf(const ChunkAddress& address) {
    const redis::EntryKeys names(address.key);
    return {names.Header(), names.K(0), names.V(0), names.K(1), names.V(1)};
  }
  int64_t NumKeysOf(const ChunkAddress& address) {
    int64_t count = 0;
    for (const std::string& key : KeysOf(address)) count += redis_.TtlSeconds(key) != -2 ? 1 : 0;
    return count;
  }

  FakeRedis redis_{3};
};

}  // namespace kvblend::store
