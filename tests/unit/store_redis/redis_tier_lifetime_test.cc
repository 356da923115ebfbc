// How long chunks stay in Redis: as long as they are used, wherever they are used from.
#include <memory>
#include <string>

#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store {
namespace {

class RedisTierLifetimeTest : public RedisTierTest {
 protected:
  const int64_t ttl_seconds_ = absl::ToInt64Seconds(kTtl);

  /// All of the chunk is there, with at least so much time left, and not less for sections than the header.
  void ExpectLeft(int64_t seconds) {
    const int64_t header = redis_.TtlSeconds(KeysOf(chunk_)[0]);
    EXPECT_GE(header, seconds);
    for (const std::string& key : KeysOf(chunk_)) EXPECT_GE(redis_.TtlSeconds(key), header) << key;
    EXPECT_GE(redis_.TtlSeconds(redis::ContentIndexKey(chunk_.content_key)), header);
  }

  const ChunkAddress chunk_ = SmallAddress(1);
};

TEST_F(RedisTierLifetimeTest, PuttingWhatIsThereBeginsItAnew) {
  ASSERT_TRUE(Put(*OpenTier(), chunk_).ok());
  redis_.clock().Advance(kTtl * 0.9);
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  AwaitWrites(*tier);
  EXPECT_EQ(tier->Stats().duplicate_puts, 1);
  EXPECT_EQ(tier->Stats().ttl_refreshes, 1);
  ExpectLeft(ttl_seconds_);
}

TEST_F(RedisTierLifetimeTest, AChunkThatGoesWhileItIsPutIsWritten) {
  ASSERT_TRUE(Put(*OpenTier(), chunk_).ok());
  const auto tier = OpenTier();
  redis_.SetScript([&](int32_t, const FakeRedis::Arguments& arguments) {
    if (arguments[0] == "EXPIRE" && arguments[1] == KeysOf(chunk_)[1]) redis_.Erase(KeysOf(chunk_)[0]);
    return FakeReply{};
  });
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  EXPECT_EQ(tier->Stats().puts, 1);
  EXPECT_TRUE(ReadAndCompare(*tier, chunk_).ok());
}

TEST_F(RedisTierLifetimeTest, GoesOnWhileAChunkIsUsedFromHostMemory) {
  auto tier = OpenTier();
  RedisTier& redis = *tier;
  const auto store =
      *ChunkStore::Create({.byte_budget = 8 * kChunkBytes, .now = [this] { return redis_.clock().Now(); }},
                          Only(std::move(tier)));
  ASSERT_TRUE(store->Insert(chunk_, FilledKv(chunk_), {}).ok());
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  constexpr int32_t kLifetimes = 5;
  constexpr int32_t kUsesPerLifetime = 20;
  for (int32_t i = 0; i < kLifetimes * kUsesPerLifetime; ++i) {
    redis_.clock().Advance(kTtl / kUsesPerLifetime);
    const auto found = LookupOne(*store, chunk_.key);
    ASSERT_TRUE(found.has_value());
    ASSERT_EQ(found->tier(), Tier::kHostMemory);
    ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
    AwaitWrites(redis);
    ExpectLeft(ttl_seconds_ * 3 / 8 - 1);
    if (HasFailure()) return;
  }
  EXPECT_EQ(redis.Stats().lookups, 0);
  EXPECT_LE(redis.Stats().ttl_refreshes, 2 * kLifetimes) << "at most once in half of a lifetime";
}

TEST_F(RedisTierLifetimeTest, IsProlongedByUsesOnceHalfOfItHasPassed) {
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  const int64_t commands = redis_.num_commands();
  redis_.clock().Advance(kTtl * 0.4);
  tier->NoteUse(chunk_);
  EXPECT_EQ(redis_.num_commands(), commands) << "the tier knows without asking";
  redis_.clock().Advance(kTtl * 0.2);
  EXPECT_TRUE(ReadAndCompare(*tier, chunk_).ok());  // which prolongs it
  tier->NoteUse(chunk_);
  EXPECT_EQ(tier->Stats().ttl_refreshes, 1);
  AwaitWrites(*tier);  // or Redis may hear of it when the chunk has gone
  redis_.clock().Advance(kTtl * 0.6);
  tier->NoteUse(chunk_);
  AwaitWrites(*tier);
  EXPECT_EQ(tier->Stats().ttl_refreshes, 2);
  ExpectLeft(ttl_seconds_);
  EXPECT_TRUE(tier->Contains(chunk_.key));
}

TEST_F(RedisTierLifetimeTest, RedisLacksWhatIsNotWholeOrHasNotHalfOfItsTime) {
  const auto tier = OpenTier();
  const ChunkAddress nowhere = SmallAddress(2), in_part = SmallAddress(3);
  const auto lack = [&] { return tier->Lack({chunk_.key, nowhere.key, in_part.key}, SmallFormat()); };
  ASSERT_TRUE(Put(*tier, in_part).ok());
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  EXPECT_EQ(lack(), std::vector<bool>({false, true, false}));
  redis_.Erase(KeysOf(in_part)[4]);  // as an eviction does
  EXPECT_EQ(lack(), std::vector<bool>({false, true, true}));
  EXPECT_FALSE(tier->Contains(in_part.key)) << "or it would not be offered again";
  ASSERT_TRUE(Put(*tier, in_part).ok());
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  EXPECT_EQ(lack(), std::vector<bool>({false, true, false}));

  redis_.clock().Advance(kTtl * 0.6);
  EXPECT_EQ(lack(), std::vector<bool>({true, true, true}));
  EXPECT_FALSE(tier->Contains(chunk_.key));
  EXPECT_LT(redis_.TtlSeconds(KeysOf(chunk_)[0]), ttl_seconds_ / 2) << "who only looks prolongs nothing";
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  EXPECT_EQ(lack(), std::vector<bool>({false, true, true}));

  redis_.ReplyTo("UNLINK", {.execute = false, .instead = "-NOREPLICAS Not enough good replicas.\r\n"});
  EXPECT_FALSE(tier->Erase(kAllNamespaces, chunk_.key).ok());
  EXPECT_EQ(lack(), std::vector<bool>({true, true, true})) << "who puts it again wants it there";
  redis_.ReplyTo("PTTL", {.execute = false, .instead = "-NOPERM no.\r\n"});
  EXPECT_EQ(lack(), std::vector<bool>({false, false, false})) << "nobody knows";
}

TEST_F(RedisTierLifetimeTest, OfWhatIsNotThereOrToBeErasedIsNotProlonged) {
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  redis_.clock().Advance(kTtl * 0.6);
  redis_.ReplyTo("UNLINK", {.execute = false, .instead = "-NOREPLICAS Not enough good replicas.\r\n"});
  EXPECT_FALSE(tier->Erase(kAllNamespaces, chunk_.key).ok());
  tier->NoteUse(chunk_);
  redis_.SetScript(nullptr);
  EXPECT_LT(redis_.TtlSeconds(KeysOf(chunk_)[0]), ttl_seconds_ / 2);
  EXPECT_TRUE(*tier->Erase(kAllNamespaces, chunk_.key));

  ASSERT_TRUE(Put(*tier, chunk_).ok());
  redis_.clock().Advance(kTtl * 0.6);
  redis_.Erase(KeysOf(chunk_)[0]);
  tier->NoteUse(chunk_);
  EXPECT_EQ(tier->Stats().ttl_refreshes, 0);
  EXPECT_FALSE(tier->Contains(chunk_.key));
}

TEST_F(RedisTierLifetimeTest, AHeaderIsNotProlongedWhereItsSectionsAreNot) {
  const auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  redis_.clock().Advance(kTtl * 0.6);
  redis_.SetScript([&](int32_t, const FakeRedis::Arguments& arguments) -> FakeReply {
    if (arguments[0] != "EXPIRE" || arguments[1] != KeysOf(chunk_)[4]) return {};
    return {.execute = false, .instead = "-NOREPLICAS Not enough good replicas.\r\n"};
  });
  tier->NoteUse(chunk_);
  EXPECT_LT(redis_.TtlSeconds(KeysOf(chunk_)[0]), ttl_seconds_ / 2);
  EXPECT_EQ(tier->Stats().ttl_refreshes, 0);
  redis_.SetScript(nullptr);
  tier->NoteUse(chunk_);
  AwaitWrites(*tier);
  ExpectLeft(ttl_seconds_);
}

TEST_F(RedisTierLifetimeTest, ThatHasNoEndIsLeftAlone) {
  RedisTier::Options for_ever = TierOptions();
  for_ever.ttl = absl::ZeroDuration();
  const auto tier = OpenTier(for_ever);
  EXPECT_EQ(tier->lifetime(), absl::InfiniteDuration());
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  ASSERT_TRUE(Put(*tier, chunk_).ok());
  tier->NoteUse(chunk_);
  for (const std::string& key : KeysOf(chunk_)) EXPECT_EQ(redis_.TtlSeconds(key), -1);
  EXPECT_EQ(tier->Stats().ttl_refreshes, 0);
}

}  // namespace
}  // namespace kvblend::store
