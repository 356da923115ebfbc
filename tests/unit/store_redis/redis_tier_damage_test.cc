// Whatever stands in Redis under an entry's names: nothing wrong is served, and what is damaged goes.
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store {
namespace {

class RedisTierDamageTest : public RedisTierTest {
 protected:
  /// Damages one value of a stored entry, and sees that it is a miss, removed, counted, and healed by Put. Of
  /// one without all its sections the header is removed: the others may be those of a Put under way.
  template <typename Damage>
  void ExpectFoundOut(RedisTier& tier, const std::string& key, const Damage& damage,
                      const std::string& what) {
    damage();
    const RedisTierStats before = tier.Stats();
    const absl::Status status = ReadAndCompare(tier, address_);
    EXPECT_FALSE(status.ok()) << what << " of " << key;
    AwaitWrites(tier);
    const RedisTierStats after = tier.Stats();
    const int64_t damaged = after.damaged_entries - before.damaged_entries;
    const int64_t incomplete = after.incomplete_entries - before.incomplete_entries;
    EXPECT_EQ(damaged + incomplete, absl::IsNotFound(status) ? 0 : 1) << what << " of " << key;
    EXPECT_FALSE(redis_.Get(KeysOf(address_)[0]).has_value()) << what << " of " << key;
    if (what == "eviction") {
      EXPECT_EQ(incomplete, 1) << key;
      EXPECT_EQ(NumKeysOf(address_), 3) << key;
    }
    if (incomplete == 0) {
      EXPECT_EQ(NumKeysOf(address_), 0) << what << " of " << key;
    }
    EXPECT_FALSE(tier.Contains(address_.key));
    ASSERT_TRUE(Put(tier, address_).ok());
    ASSERT_TRUE(ReadAndCompare(tier, address_).ok());
  }

  const ChunkAddress address_ = SmallAddress(1);
};

TEST_F(RedisTierDamageTest, FlippedCutMissingAndForeignValuesAreFoundOut) {
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, address_).ok());
  const ChunkAddress other = SmallAddress(2);
  ASSERT_TRUE(Put(*tier, other).ok());
  std::mt19937 random(11);
  const std::vector<std::string> keys = KeysOf(address_);
  const auto expect_found_out = [&](const std::string& key, const std::string& value,
                                    const std::string& what) {
    ExpectFoundOut(
        *tier, key, [&] { redis_.Set(key, value); }, what);
  };
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string& key = keys[i];
    for (int32_t round = 0; round < 40; ++round) {
      std::string value = *redis_.Get(key);
      value[random() % value.size()] ^= static_cast<char>(1U << random() % 8);
      expect_found_out(key, value, "a flip");
    }
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100}, size_t{4095}}) {
      expect_found_out(key, redis_.Get(key)->substr(0, size), "a cut");
    }
    expect_found_out(key, *redis_.Get(key) + "x", "a longer one");
    expect_found_out(key, *redis_.Get(KeysOf(other)[i]), "another entry's");
    if (i > 0) {
      ExpectFoundOut(
          *tier, key, [&] { redis_.Erase(key); }, "eviction");
    }
    ExpectFoundOut(
        *tier, key,
        [&] {
          redis_.Erase(key);
          redis_.AddMember(key, "x");
        },
        "another type");
  }
  EXPECT_TRUE(ReadAndCompare(*tier, other).ok());
}

// The lookup reads the old header, and of the new sections K alone: between its commands a Put that found V
// evicted has begun to write the entry again.
TEST_F(RedisTierDamageTest, ALookupWhileAnEntryIsWrittenAgainTakesNothingOfItAway) {
  const auto writer = OpenTier();
  RedisTier::Options one_connection = TierOptions();  // which keeps the order of what is asked
  one_connection.connections_per_node = 1;
  one_connection.budget = absl::Minutes(1);
  const auto reader = OpenTier(one_connection);
  ASSERT_TRUE(Put(*writer, address_).ok());
  const redis::EntryKeys names(address_.key);
  redis_.Erase(names.V(0));

  absl::Notification asks_for_k, comes_to_v, go_on;
  redis_.SetScript([&](int32_t, const FakeRedis::Arguments& arguments) {
    if (arguments[0] == "STRLEN" && arguments[1] == names.K(0)) {
      asks_for_k.Notify();
      comes_to_v.WaitForNotification();
    }
    if (arguments[0] == "SET" && arguments[1] == names.V(0)) {
      comes_to_v.Notify();
      go_on.WaitForNotification();
    }
    return FakeReply{};
  });
  absl::Status put;
  std::thread putting([&] {
    asks_for_k.WaitForNotification();
    put = Put(*writer, address_);
  });
  EXPECT_EQ(OpenNow(*reader, address_.key).status().code(), absl::StatusCode::kDataLoss);
  AwaitWrites(*reader);
  go_on.Notify();
  putting.join();
  redis_.SetScript(nullptr);
  ASSERT_TRUE(put.ok()) << put;
  EXPECT_EQ(reader->Stats().incomplete_entries, 1);
  EXPECT_EQ(reader->Stats().damaged_entries, 0) << "that is for what alarms operators";
  const absl::Status read = ReadAndCompare(*reader, address_);
  EXPECT_TRUE(read.ok()) << read;
}

TEST_F(RedisTierDamageTest, WhatANewerVersionWroteIsAMissAndLeftAlone) {
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, address_).ok());
  std::string header = *redis_.Get(KeysOf(address_)[0]);
  header[8] = 2;  // version
  std::fill_n(header.begin() + 16, 8, '\0');
  const uint64_t checksum = XXH3_64bits(header.data(), header.size());
  std::memcpy(header.data() + 16, &checksum, sizeof(checksum));
  redis_.Set(KeysOf(address_)[0], header);
  EXPECT_EQ(OpenNow(*tier, address_.key).status().code(), absl::StatusCode::kUnimplemented);
  AwaitWrites(*tier);
  EXPECT_EQ(NumKeysOf(address_), 5);
  EXPECT_EQ(tier->Stats().unsupported_entries, 1);
  EXPECT_EQ(tier->Stats().damaged_entries, 0);
}

TEST_F(RedisTierDamageTest, APutThatIsInterruptedLeavesAWholeEntryOrAMiss) {
  using Then = FakeReply::Then;
  for (const FakeReply& interruption : {CutReply(0, Then::kReset, false), CutReply(0, Then::kReset),
                                        CutReply(0, Then::kStall, false), CutReply(0, Then::kStall)}) {
    bool reached_the_end = false;
    for (int32_t stop_at = 0; !reached_the_end; ++stop_at) {
      FakeRedis redis(3);
      std::atomic<int32_t> count{0};
      const auto tier = OpenTier(TierOptions(redis));
      redis.SetScript([&count, interruption, stop_at](int32_t, const FakeRedis::Arguments& arguments) {
        if (arguments[0] == "PING" || arguments[0] == "CLUSTER" || count++ != stop_at) return FakeReply{};
        return interruption;
      });
      const absl::Status put = Put(*tier, address_);
      reached_the_end = count <= stop_at;
      redis.SetScript(nullptr);
      redis.clock().Advance(absl::Seconds(1));
      ASSERT_TRUE(tier->AwaitAllWorking(Soon()));
      const absl::Status read = ReadAndCompare(*tier, address_);
      EXPECT_TRUE(read.ok() || (!put.ok() && absl::IsNotFound(read))) << read;
      // Another try makes it whole.
      ASSERT_TRUE(Put(*tier, address_).ok());
      EXPECT_TRUE(ReadAndCompare(*tier, address_).ok());
    }
  }
}

TEST_F(RedisTierDamageTest, ARedisWithoutMemoryKeepsWorkingWithWhatItHas) {
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, address_).ok());
  redis_.ReplyTo(
      "SET", {.execute = false, .instead = "-OOM command not allowed when used memory > 'maxmemory'.\r\n"});
  EXPECT_EQ(Put(*tier, SmallAddress(2)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tier->Stats().put_failures, 1);
  EXPECT_TRUE(ReadAndCompare(*tier, address_).ok());
  EXPECT_EQ(tier->Stats().breaker_opens, 0);
}

}  // namespace
}  // namespace kvblend::store
