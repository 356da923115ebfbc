#include "engine/store/redis/redis_tier.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store_redis/redis_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pointee;

TEST_F(RedisTierTest, WhatOnePutsEveryOtherFindsAndReads) {
  const auto one = OpenTier();
  const auto other = OpenTier();
  const ChunkAddress address = SmallAddress(1, 8, {0}, "tenant");
  EXPECT_EQ(OpenNow(*other, address.key).status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Put(*one, address, {.label = "doc 1", .compute_cost_seconds = 0.5}).ok());
  EXPECT_TRUE(ReadAndCompare(*one, address).ok());
  EXPECT_TRUE(ReadAndCompare(*other, address).ok());
  const auto info = other->Stat("tenant", address.key);
  ASSERT_TRUE(info.has_value());
  EXPECT_EQ(info->key, address.key);
  EXPECT_EQ(info->content_key, address.content_key);
  EXPECT_EQ(info->tenant_namespace, "tenant");
  EXPECT_EQ(info->label, "doc 1");
  EXPECT_EQ(info->bytes, 4096 + 2 * 2 * 4096);
  EXPECT_EQ(info->tier, Tier::kRedis);
  EXPECT_EQ(info->compute_cost_seconds, 0.5);
  EXPECT_FALSE(other->Stat("else", address.key).has_value());
  EXPECT_FALSE((*OpenNow(*other, address.key))->pinned());
  EXPECT_TRUE(other->List(kAllNamespaces, std::nullopt, 10).empty());
  const RedisTierStats stats = other->Stats();
  EXPECT_EQ(stats.nodes, 3);
  EXPECT_EQ(stats.nodes_working, 3);
  EXPECT_EQ(stats.lookups, 3);
  EXPECT_EQ(stats.hits, 2);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.reads, 2);
  EXPECT_EQ(stats.read_bytes, 4 * 4096);
  EXPECT_EQ(one->Stats().puts, 1);
  EXPECT_EQ(one->Stats().put_bytes, 4096 + 2 * 2 * 4096);
}

TEST_F(RedisTierTest, SectionsAreKeysOfOneSlotAndOutliveTheHeader) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  const std::string hex = address.key.ToHex();
  EXPECT_THAT(KeysOf(address),
              ElementsAre("kvb1:{" + hex + "}:header", "kvb1:{" + hex + "}:0:k", "kvb1:{" + hex + "}:0:v",
                          "kvb1:{" + hex + "}:1:k", "kvb1:{" + hex + "}:1:v"));
  const auto kv = FilledKv(address);
  for (int32_t i = 1; i < 5; ++i) {
    const std::string key = KeysOf(address)[i];
    EXPECT_EQ(redis::SlotOf(key), redis::SlotOf(hex));
    const absl::Span<const std::byte> bytes = kv->LayerBytes((i - 1) / 2).subspan((i - 1) % 2 * 4096, 4096);
    EXPECT_TRUE(*redis_.Get(key) == std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    EXPECT_GT(redis_.TtlSeconds(key), redis_.TtlSeconds(KeysOf(address)[0]));
  }
  EXPECT_EQ(redis_.TtlSeconds(KeysOf(address)[0]), absl::ToInt64Seconds(kTtl));
  EXPECT_GT(redis_.TtlSeconds(redis::ContentIndexKey(address.content_key)), absl::ToInt64Seconds(kTtl));

  RedisTier::Options for_ever = TierOptions();
  for_ever.ttl = absl::ZeroDuration();
  ASSERT_TRUE(Put(*OpenTier(for_ever), SmallAddress(2)).ok());
  for (const std::string& key : KeysOf(SmallAddress(2))) EXPECT_EQ(redis_.TtlSeconds(key), -1);
}

TEST_F(RedisTierTest, ManyAreLookedAtTogether) {
  const auto tier = OpenTier();
  std::vector<ChunkKey> keys;
  for (int32_t i = 0; i < 300; ++i) {  // more than are asked for at once
    keys.push_back(SmallAddress(i, 8, {0}, "tenant").key);
    if (i % 7 == 0) {
      ASSERT_TRUE(Put(*tier, SmallAddress(i, 8, {0}, "tenant"), {.label = std::to_string(i)}).ok());
    }
  }
  redis_.Set(KeysOf(SmallAddress(7, 8, {0}, "tenant"))[0], "no header");
  redis_.Erase(KeysOf(SmallAddress(14, 8, {0}, "tenant"))[1]);
  const auto infos = tier->StatAll("tenant", keys);
  ASSERT_EQ(infos.size(), 300);
  for (int32_t i = 0; i < 300; ++i) {
    ASSERT_EQ(infos[i].has_value(), i % 7 == 0 && i != 7 && i != 14) << i;
    if (!infos[i].has_value()) continue;
    EXPECT_EQ(infos[i]->key, keys[i]);
    EXPECT_EQ(infos[i]->label, std::to_string(i));
  }
  EXPECT_EQ(tier->Stats().lookups, 0) << "nobody wants to read them";
  for (const auto& info : tier->StatAll("else", keys)) EXPECT_FALSE(info.has_value());
}

TEST_F(RedisTierTest, HitsKeepAnEntryAlive) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  for (int32_t round = 0; round < 3; ++round) {
    redis_.clock().Advance(kTtl / 3);
    EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
    AwaitWrites(*tier);
  }
  EXPECT_EQ(tier->Stats().ttl_refreshes, 1);  // not with every hit
  for (const std::string& key : KeysOf(address)) {
    EXPECT_GE(redis_.TtlSeconds(key), redis_.TtlSeconds(KeysOf(address)[0]));
    EXPECT_GT(redis_.TtlSeconds(key), absl::ToInt64Seconds(kTtl) / 2);
  }
  redis_.clock().Advance(kTtl + absl::Seconds(1));
  EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RedisTierTest, PuttingTwiceStoresOnceUnlessSomethingIsMissing) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address, {.label = "first"}).ok());
  ASSERT_TRUE(Put(*tier, address, {.label = "second"}).ok());
  EXPECT_EQ(tier->Stat("", address.key)->label, "first");
  EXPECT_EQ(tier->Stats().duplicate_puts, 1);
  for (const std::string& key : KeysOf(address)) {
    redis_.Erase(key);
    ASSERT_TRUE(Put(*tier, address).ok());
    EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
  }
  EXPECT_EQ(tier->Stats().puts, 6);
}

TEST_F(RedisTierTest, EmptyChunksAreEntriesToo) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1, 0);
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_EQ(NumKeysOf(address), 1);
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

TEST_F(RedisTierTest, RefusesWhatIsNoEntryOrTooLarge) {
  RedisTier::Options options = TierOptions();
  options.max_value_bytes = 4096;
  const auto tier = OpenTier(options);
  const ChunkAddress address = SmallAddress(1);
  EXPECT_EQ(tier->Put(address, *FilledKv(SmallAddress(1, 7)), {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(*tier, address, {.compute_cost_seconds = -1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(*tier, address, {.label = std::string(257, 'x')}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(*tier, SmallAddress(2, 9)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tier->Stats().too_large_puts, 1);
  EXPECT_TRUE(redis_.Keys().empty());
  ASSERT_TRUE(Put(*tier, address).ok());
  const auto entry = *OpenNow(*tier, address.key);
  const PageBuffer buffer(entry->header().layer_bytes() + 4096);
  const auto read = [&](int32_t layer, size_t begin, size_t size) {
    return ReadLayerNow(*entry, layer, buffer.bytes().subspan(begin, size)).code();
  };
  EXPECT_EQ(read(2, 0, 8192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(-1, 0, 8192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 0, 8191), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 64, 8192), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(read(0, 0, 8192), absl::StatusCode::kOk);
}

TEST_F(RedisTierTest, RefusesBadOptions) {
  const auto error = [&](auto change) {
    RedisTier::Options options = TierOptions();
    change(options);
    const absl::Status status = RedisTier::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](auto& o) { o.nodes.clear(); }), HasSubstr("nodes is empty"));
  EXPECT_THAT(error([](auto& o) { o.ttl = absl::Milliseconds(5); }), HasSubstr("ttl is 5ms"));
  EXPECT_THAT(error([](auto& o) { o.ttl = absl::InfiniteDuration(); }), HasSubstr("ttl"));
  EXPECT_THAT(error([](auto& o) { o.budget = absl::ZeroDuration(); }), HasSubstr("budget"));
  EXPECT_THAT(error([](auto& o) { o.max_value_bytes = 0; }), HasSubstr("max_value_bytes"));
  EXPECT_THAT(error([](auto& o) { o.connections_per_node = 0; }), HasSubstr("connections_per_node"));
  EXPECT_THAT(error([](auto& o) { o.user = "me"; }), HasSubstr("password"));
  EXPECT_THAT(error([](auto& o) { o.tls = redis::TlsOptions{.ca_path = "/no/such/file"}; }),
              HasSubstr("/no/such/file"));
}

TEST_F(RedisTierTest, AnyAnchorPrefersAnchoredThenTheSmallestKey) {
  const auto tier = OpenTier();
  const auto find = [&](const ContentKey& key) {
    return tier->FindAnyAnchor({key}, absl::InfiniteFuture())[0];
  };
  const std::vector<ChunkAddress> addresses = {SmallAddress(1, 8, {}), SmallAddress(1, 8, {1}),
                                               SmallAddress(1, 8, {2})};
  const ContentKey content = addresses[0].content_key;
  EXPECT_FALSE(find(content).has_value());
  ASSERT_TRUE(Put(*tier, addresses[0]).ok());
  EXPECT_EQ(find(content)->key, addresses[0].key);
  EXPECT_TRUE(find(content)->isolated);
  ASSERT_TRUE(Put(*tier, addresses[1]).ok());
  EXPECT_EQ(find(content)->key, addresses[1].key);
  ASSERT_TRUE(Put(*tier, addresses[2]).ok());
  const ChunkKey smallest = std::min(addresses[1].key, addresses[2].key);
  EXPECT_EQ(find(content)->key, smallest);
  EXPECT_FALSE(find(content)->isolated);

  // Members that name nothing, or are none, are taken out when they are met.
  const std::string index = redis::ContentIndexKey(content);
  redis_.AddMember(index, "a" + std::string(64, '0'));
  redis_.AddMember(index, "a" + std::string(64, 'g'));
  redis_.AddMember(index, "A nonsense");
  for (const std::string& key : KeysOf(smallest == addresses[1].key ? addresses[1] : addresses[2])) {
    redis_.Erase(key);
  }
  EXPECT_EQ(find(content)->key, std::max(addresses[1].key, addresses[2].key));
  AwaitWrites(*tier);
  EXPECT_EQ(redis_.Members(index).size(), 2);
  EXPECT_EQ(tier->Stats().stale_anchors, 4);

  // Many at once, in the order of the question.
  ASSERT_TRUE(Put(*tier, SmallAddress(2)).ok());
  const auto found = tier->FindAnyAnchor({SmallAddress(3).content_key, content, SmallAddress(2).content_key},
                                         absl::InfiniteFuture());
  EXPECT_FALSE(found[0].has_value());
  EXPECT_EQ(found[1]->key, std::max(addresses[1].key, addresses[2].key));
  EXPECT_EQ(found[2]->key, SmallAddress(2).key);
}

TEST_F(RedisTierTest, TheContentIndexIsBounded) {
  const auto tier = OpenTier();
  for (int32_t anchor = 0; anchor < redis::ContentIndex::kMaxIndexedAnchors + 10; ++anchor) {
    ASSERT_TRUE(Put(*tier, SmallAddress(1, 8, {anchor})).ok());
  }
  EXPECT_EQ(redis_.Members(redis::ContentIndexKey(SmallAddress(1).content_key)).size(),
            redis::ContentIndex::kMaxIndexedAnchors);
}

TEST_F(RedisTierTest, WhatIsKnownToBeThereIsToldWithoutAsking) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  EXPECT_FALSE(tier->Contains(address.key));
  ASSERT_TRUE(Put(*tier, address).ok());
  const auto other = OpenTier();
  const int64_t commands = redis_.num_commands();
  EXPECT_TRUE(tier->Contains(address.key));
  EXPECT_FALSE(other->Contains(address.key));  // has not heard of it
  EXPECT_EQ(redis_.num_commands(), commands);
  EXPECT_TRUE(OpenNow(*other, address.key).ok());
  EXPECT_TRUE(other->Contains(address.key));
  redis_.clock().Advance(kTtl / 2);
  EXPECT_FALSE(other->Contains(address.key));
  ASSERT_TRUE(Put(*tier, address).ok());  // there already: known again
  EXPECT_TRUE(tier->Contains(address.key));
  EXPECT_TRUE(*tier->Erase(kAllNamespaces, address.key));
  EXPECT_FALSE(tier->Contains(address.key));
  EXPECT_FALSE(OpenNow(*other, address.key).ok());
  EXPECT_FALSE(other->Contains(address.key));
}

TEST_F(RedisTierTest, OnceAnEntryIsMissedThatShouldBeThereAllAreOfferedAgain) {
  const auto tier = OpenTier();
  const ChunkAddress missed = SmallAddress(1), lost = SmallAddress(2), kept = SmallAddress(3);
  for (const ChunkAddress& address : {missed, lost, kept}) ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_FALSE(OpenNow(*tier, SmallAddress(4).key).ok());
  EXPECT_TRUE(tier->Contains(lost.key)) << "the one that was missed had never been there";
  for (const ChunkAddress& address : {missed, lost}) {
    for (const std::string& key : KeysOf(address)) redis_.Erase(key);
  }
  EXPECT_TRUE(tier->Contains(lost.key)) << "nobody has told";
  EXPECT_FALSE(OpenNow(*tier, missed.key).ok());
  EXPECT_FALSE(tier->Contains(lost.key));
  for (const ChunkAddress& address : {missed, lost, kept}) {
    ASSERT_TRUE(Put(*tier, address).ok());
    EXPECT_TRUE(tier->Contains(address.key));
    EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
  }
  EXPECT_EQ(tier->Stats().puts, 5);
  EXPECT_EQ(tier->Stats().duplicate_puts, 1) << "what is still there is not written again";
}

TEST_F(RedisTierTest, EraseLeavesNothing) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1, 8, {0}, "tenant");
  EXPECT_FALSE(*tier->Erase(kAllNamespaces, address.key));
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_FALSE(*tier->Erase("other", address.key));
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
  EXPECT_TRUE(*tier->Erase("tenant", address.key));
  EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
  AwaitWrites(*tier);
  EXPECT_EQ(NumKeysOf(address), 0);
  EXPECT_TRUE(redis_.Members(redis::ContentIndexKey(address.content_key)).empty());
  EXPECT_EQ(tier->Stats().erased, 1);
  EXPECT_EQ(tier->SetPinned("tenant", address.key, true).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(tier->SetPinned("tenant", address.key, false).code(), absl::StatusCode::kNotFound);
}

TEST_F(RedisTierTest, WhatCouldNotBeErasedIsNotServedAndGoesLater) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1, 8, {0}, "tenant");
  const ChunkAddress foreign = SmallAddress(2, 8, {0}, "other");
  ASSERT_TRUE(Put(*tier, address).ok());
  ASSERT_TRUE(Put(*tier, foreign).ok());
  const std::vector<int32_t> nodes = {redis_.NodeOf(KeysOf(address)[0]), redis_.NodeOf(KeysOf(foreign)[0])};
  for (const int32_t node : nodes) redis_.Kill(node);
  EXPECT_EQ(tier->Erase("tenant", address.key).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier->Erase("tenant", foreign.key).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier->Stats().erase_failures, 2);
  for (const int32_t node : nodes) redis_.Revive(node);
  Recover(*tier);
  EXPECT_FALSE(tier->Stat(kAllNamespaces, address.key).has_value());
  EXPECT_FALSE(tier->FindAnyAnchor({address.content_key}, absl::InfiniteFuture())[0].has_value());
  EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(ReadAndCompare(*tier, foreign).ok());  // of another tenant: it was not his to erase
  AwaitWrites(*tier);
  EXPECT_EQ(NumKeysOf(address), 0);
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

TEST_F(RedisTierTest, WhatCouldNotBeErasedGoesOnceItsNodeWorksThoughNobodyAsksForIt) {
  RedisTier::Options options = TierOptions();
  options.erasure_retry_interval = absl::Milliseconds(1);
  const auto tier = OpenTier(options);
  const ChunkAddress address = SmallAddress(1, 8, {0}, "tenant");
  const ChunkAddress foreign = SmallAddress(2, 8, {0}, "other");
  ASSERT_TRUE(Put(*tier, address).ok());
  ASSERT_TRUE(Put(*tier, foreign).ok());
  const ChunkAddress unknown = SmallAddress(3, 8, {0}, "tenant");
  const std::vector<ChunkAddress> all = {address, foreign, unknown};
  std::set<int32_t> nodes;
  for (const ChunkAddress& erased : all) nodes.insert(redis_.NodeOf(KeysOf(erased)[0]));
  for (const int32_t node : nodes) redis_.Kill(node);
  for (const ChunkAddress& erased : all) {
    EXPECT_EQ(tier->Erase("tenant", erased.key).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(tier->Stats().pending_erasures, 3);
  for (const int32_t node : nodes) redis_.Revive(node);
  Recover(*tier);
  while (tier->Stats().pending_erasures > 0) std::this_thread::yield();
  AwaitWrites(*tier);
  EXPECT_EQ(NumKeysOf(address), 0);
  EXPECT_EQ(NumKeysOf(foreign), 5) << "of another tenant: it was not his to erase";
  EXPECT_EQ(tier->Stats().pending_erasures, 0);
  EXPECT_TRUE(ReadAndCompare(*tier, foreign).ok());
}

// As with min-replicas-to-write, for as long as too few replicas are there.
TEST_F(RedisTierTest, WhatRedisRefusesToEraseIsNotServedHoweverOftenItIsAskedFor) {
  const auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1, 8, {0}, "tenant");
  ASSERT_TRUE(Put(*tier, address).ok());
  redis_.SetScript([](int32_t, const FakeRedis::Arguments& arguments) -> FakeReply {
    const std::string& name = arguments[0];
    if (name != "UNLINK" && name != "ZREM" && name != "SET") return {};
    return {.execute = false, .instead = "-NOREPLICAS Not enough good replicas to write.\r\n"};
  });
  const auto expect_not_found = [&] {
    EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
    EXPECT_FALSE(tier->FindAnyAnchor({address.content_key}, absl::InfiniteFuture())[0].has_value());
    EXPECT_FALSE(tier->Stat("tenant", address.key).has_value());
    EXPECT_FALSE(tier->Contains(address.key));
  };
  EXPECT_EQ(tier->Erase("tenant", address.key).status().code(), absl::StatusCode::kUnavailable);
  for (int32_t round = 0; round < 3; ++round) expect_not_found();
  EXPECT_FALSE(Put(*tier, address).ok());  // which would have to remove the old header first
  expect_not_found();
  EXPECT_EQ(NumKeysOf(address), 5);

  redis_.SetScript(nullptr);
  expect_not_found();
  AwaitWrites(*tier);
  EXPECT_EQ(NumKeysOf(address), 0) << "the lookup removed it";
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
  EXPECT_EQ(tier->FindAnyAnchor({address.content_key}, absl::InfiniteFuture())[0]->key, address.key);
}

// Another server may put it again, and that one is not what was to be erased.
TEST_F(RedisTierTest, WhatIsKnownToBeGoneIsNoLongerToBeErased) {
  const auto tier = OpenTier();
  const auto other = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  const auto refuse = [&](const std::string& command) {
    redis_.ReplyTo(command, {.execute = false, .instead = "-NOREPLICAS Not enough good replicas.\r\n"});
  };
  const auto fail_to_erase = [&] {
    ASSERT_TRUE(Put(*other, address).ok());
    refuse("UNLINK");
    EXPECT_FALSE(tier->Erase(kAllNamespaces, address.key).ok());
    EXPECT_FALSE(OpenNow(*tier, address.key).ok());
    AwaitWrites(*tier);  // what the lookup sent
    redis_.SetScript(nullptr);
  };
  ASSERT_NO_FATAL_FAILURE(fail_to_erase());
  EXPECT_TRUE(*other->Erase(kAllNamespaces, address.key));
  EXPECT_FALSE(OpenNow(*tier, address.key).ok());  // it learns that nothing is there
  ASSERT_TRUE(Put(*other, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());

  ASSERT_NO_FATAL_FAILURE(fail_to_erase());
  refuse("SET");
  EXPECT_FALSE(Put(*tier, address).ok());  // it removes what was there, and gets no further
  AwaitWrites(*tier);
  redis_.SetScript(nullptr);
  ASSERT_TRUE(Put(*other, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

TEST(KnownKeysTest, AreBounded) {
  redis::KnownKeys<absl::Time> known(3);
  const absl::Time now = absl::FromUnixSeconds(1000);
  for (int32_t i = 0; i < 5; ++i) known.Insert(SmallAddress(i).key, now + absl::Seconds(i));
  EXPECT_EQ(known.size(), 3);
  EXPECT_EQ(known.Find(SmallAddress(1).key), nullptr);
  EXPECT_THAT(known.Find(SmallAddress(4).key), Pointee(now + absl::Seconds(4)));
  known.Erase(SmallAddress(4).key);
  EXPECT_EQ(known.Find(SmallAddress(4).key), nullptr);
  for (int32_t i = 0; i < 100; ++i) {
    known.Insert(SmallAddress(7).key, now + absl::Seconds(1));
    known.Erase(SmallAddress(7).key);
  }
  // Which has pushed none of the others out, nor does one that went and came again go with its first time.
  EXPECT_NE(known.Find(SmallAddress(3).key), nullptr);
  known.Insert(SmallAddress(7).key, now);
  known.Insert(SmallAddress(8).key, now);
  EXPECT_EQ(known.Find(SmallAddress(2).key), nullptr);
  EXPECT_NE(known.Find(SmallAddress(7).key), nullptr);
  EXPECT_EQ(known.size(), 3);
}

}  // namespace
}  // namespace kvblend::store
