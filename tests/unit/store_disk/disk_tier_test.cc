#include "engine/store/disk/disk_tier.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/namespace_limit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;

TEST_F(DiskTierTest, WhatWasPutIsFoundAndReadAlsoAfterRestart) {
  const ChunkAddress address = SmallAddress(1, 8, {0}, "tenant");
  for (int round = 0; round < 2; ++round) {
    auto tier = OpenTier();
    if (round == 0) {
      EXPECT_FALSE(tier->Stat(kAllNamespaces, address.key).has_value());
      EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
      ASSERT_TRUE(Put(*tier, address, {.label = "doc 1", .compute_cost_seconds = 0.5}).ok());
      now_ += absl::Seconds(5);
    }
    const auto info = tier->Stat("tenant", address.key);
    ASSERT_TRUE(info.has_value());
    EXPECT_EQ(info->key, address.key);
    EXPECT_EQ(info->content_key, address.content_key);
    EXPECT_EQ(info->anchor_hash, address.anchor_hash);
    EXPECT_EQ(info->tenant_namespace, "tenant");
    EXPECT_EQ(info->label, "doc 1");
    EXPECT_EQ(info->num_tokens, 8);
    EXPECT_EQ(info->bytes, kEntryFileBytes);
    EXPECT_EQ(info->tier, Tier::kDisk);
    EXPECT_EQ(info->compute_cost_seconds, 0.5);
    EXPECT_EQ(info->created, absl::FromUnixSeconds(1000));
    EXPECT_EQ(info->last_used, info->created);
    EXPECT_EQ(info->hits, 0);
    EXPECT_FALSE(tier->Stat("other", address.key).has_value());
    EXPECT_TRUE(tier->Contains(address.key));

    EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
    EXPECT_EQ(tier->Stat("tenant", address.key)->hits, 1);
    EXPECT_EQ(tier->Stat("tenant", address.key)->last_used, absl::FromUnixSeconds(1005));
    const DiskTierStats stats = tier->Stats();
    EXPECT_EQ(stats.entries, 1);
    EXPECT_EQ(stats.bytes, kEntryFileBytes);
    EXPECT_EQ(stats.found_entries, round);
    EXPECT_EQ(stats.puts, 1 - round);
    EXPECT_EQ(stats.opens, 1);
    EXPECT_EQ(stats.reads, 2);
    EXPECT_EQ(stats.read_bytes, 4 * 4096);
    EXPECT_EQ(stats.read_errors, 0);
    EXPECT_EQ(stats.reader, "threads");
  }
}

TEST_F(DiskTierTest, PuttingTwiceKeepsTheFirst) {
  auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address, {.label = "first"}).ok());
  ASSERT_TRUE(Put(*tier, address, {.label = "second"}).ok());
  EXPECT_EQ(tier->Stat("", address.key)->label, "first");
  EXPECT_EQ(tier->Stats().duplicate_puts, 1);
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
}

TEST_F(DiskTierTest, EmptyChunksAreEntriesToo) {
  auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1, 0);
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
  EXPECT_EQ(tier->Stat("", address.key)->bytes, 4096);
}

TEST_F(DiskTierTest, RefusesWhatIsNoEntry) {
  auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  EXPECT_EQ(tier->Put(address, *FilledKv(SmallAddress(1, 7)), {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(*tier, address, {.compute_cost_seconds = -1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Put(*tier, address, {.label = std::string(257, 'x')}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tier->Stats().entries, 0);
  ASSERT_TRUE(Put(*tier, address).ok());
  const auto entry = *OpenNow(*tier, address.key);
  const PageBuffer buffer(entry->header().layer_bytes());
  EXPECT_EQ(ReadLayerNow(*entry, 2, buffer.bytes()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadLayerNow(*entry, -1, buffer.bytes()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadLayerNow(*entry, 0, buffer.bytes().subspan(1)).code(), absl::StatusCode::kInvalidArgument);
  const PageBuffer larger(entry->header().layer_bytes() + 4096);
  EXPECT_EQ(ReadLayerNow(*entry, 0, larger.bytes().subspan(64, buffer.bytes().size())).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(DiskTierTest, RefusesBadOptions) {
  const auto code = [&](auto change) {
    DiskTier::Options options = TierOptions();
    change(options);
    return DiskTier::Open(options).status().code();
  };
  EXPECT_EQ(code([](auto& o) { o.path = ""; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.quota_bytes = -1; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.min_free_bytes = -1; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& o) { o.max_quarantined_files = -1; }), absl::StatusCode::kInvalidArgument);
}

TEST_F(DiskTierTest, AFolderHasOneServer) {
  auto tier = OpenTier();
  const auto second = DiskTier::Open(TierOptions());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.status().message(), HasSubstr("/var/chunks/lock"));
  tier.reset();
  EXPECT_TRUE(DiskTier::Open(TierOptions()).ok());
}

TEST_F(DiskTierTest, ListsByNamespaceAndKey) {
  auto tier = OpenTier();
  std::vector<std::pair<std::string, ChunkKey>> expected;
  for (const char* tenant : {"b", "", "a"}) {
    for (int32_t i = 0; i < 3; ++i) {
      const ChunkAddress address = SmallAddress(i, 8, {0}, tenant);
      ASSERT_TRUE(Put(*tier, address).ok());
      expected.emplace_back(tenant, address.key);
    }
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::pair<std::string, ChunkKey>> listed;
  std::optional<std::pair<std::string, ChunkKey>> after;
  while (true) {
    const std::vector<ChunkInfo> page = tier->List(kAllNamespaces, after, 2);
    for (const ChunkInfo& info : page) listed.emplace_back(info.tenant_namespace, info.key);
    if (page.size() < 2) break;
    after = listed.back();
  }
  EXPECT_EQ(listed, expected);
  EXPECT_EQ(tier->List("a", std::nullopt, 100).size(), 3);
  EXPECT_EQ(tier->List("c", std::nullopt, 100).size(), 0);
}

TEST_F(DiskTierTest, TheQuotaIsKeptByGivingUpTheCheapest) {
  auto tier = OpenTier(3);
  ASSERT_TRUE(Put(*tier, SmallAddress(1), {.compute_cost_seconds = 3}).ok());
  ASSERT_TRUE(Put(*tier, SmallAddress(2), {.compute_cost_seconds = 1}).ok());
  ASSERT_TRUE(Put(*tier, SmallAddress(3), {.compute_cost_seconds = 2}).ok());
  ASSERT_TRUE(Put(*tier, SmallAddress(4), {.compute_cost_seconds = 2}).ok());
  EXPECT_FALSE(tier->Contains(SmallAddress(2).key));
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(2).key)));
  EXPECT_EQ(tier->Stats().evictions, 1);
  EXPECT_EQ(tier->Stats().evicted_bytes, kEntryFileBytes);
  EXPECT_EQ(tier->Stats().bytes, 3 * kEntryFileBytes);
  tier.reset();
  // A smaller quota holds from the start on.
  tier = OpenTier(1);
  EXPECT_EQ(tier->Stats().entries, 1);
  EXPECT_TRUE(tier->Contains(SmallAddress(1).key));
  EXPECT_EQ(NumFilesIn("entries"), 1);
  // What can't fit takes nothing with it.
  const ChunkAddress large = SmallAddress(5, 3000);
  EXPECT_EQ(Put(*tier, large).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(tier->Contains(SmallAddress(1).key));
  EXPECT_EQ(tier->Stats().put_rejections, 1);
}

TEST_F(DiskTierTest, PinsLastOverRestartsUntilUnpinned) {
  auto tier = OpenTier(2);
  const ChunkAddress pinned = SmallAddress(1);
  EXPECT_EQ(tier->SetPinned("", pinned.key, true).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(Put(*tier, pinned).ok());
  EXPECT_EQ(tier->SetPinned("other", pinned.key, true).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(tier->SetPinned("", pinned.key, true).ok());
  ASSERT_TRUE(tier->SetPinned("", pinned.key, true).ok());
  EXPECT_EQ(tier->Stats().pinned_entries, 1);
  EXPECT_EQ(tier->Stats().pinned_bytes, kEntryFileBytes);
  tier.reset();
  tier = OpenTier(2);
  EXPECT_TRUE(tier->Stat("", pinned.key)->pinned);
  for (int32_t i = 2; i < 6; ++i) ASSERT_TRUE(Put(*tier, SmallAddress(i), {.compute_cost_seconds = 1}).ok());
  EXPECT_TRUE(tier->Contains(pinned.key));
  // Half of the quota is pinned: others have the rest.
  const absl::Status too_much = tier->SetPinned("", SmallAddress(5).key, true);
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(too_much.message(), testing::HasSubstr("half of the quota"));
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(5).key, ".pin")));
  ASSERT_TRUE(tier->SetPinned("", pinned.key, false).ok());
  ASSERT_TRUE(tier->SetPinned("", SmallAddress(5).key, true).ok());
  ASSERT_TRUE(Put(*tier, SmallAddress(6)).ok());
  EXPECT_FALSE(tier->Contains(pinned.key));
  ASSERT_TRUE(*tier->Erase("", SmallAddress(5).key));
  tier.reset();
  tier = OpenTier(2);
  EXPECT_EQ(tier->Stats().pinned_entries, 0);
  EXPECT_EQ(NumFilesIn("entries"), 1);
}

TEST_F(DiskTierTest, APinWithoutAnEntryIsRemoved) {
  memory_.SetContents(PathOf(SmallAddress(1).key, ".pin"), {});
  auto tier = OpenTier();
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(1).key, ".pin")));
  EXPECT_EQ(tier->Stats().foreign_files, 0);
}

TEST_F(DiskTierTest, ANamespaceGivesUpItsOwn) {
  DiskTier::Options options = TierOptions(/*num_entries=*/4);
  options.namespace_quotas.default_share = 0.5;
  auto tier = *DiskTier::Open(options);
  const auto put = [&](std::string_view tenant, int32_t token, double cost) {
    const ChunkAddress address = SmallAddress(token, 8, {0}, tenant);
    return tier->Put(address, *FilledKv(address), {.compute_cost_seconds = cost});
  };
  ASSERT_TRUE(put("quiet", 1, 0).ok());
  for (int32_t token = 0; token < 10; ++token) ASSERT_TRUE(put("loud", token, 1000).ok());
  EXPECT_EQ(tier->List("loud", std::nullopt, 100).size(), 2);
  EXPECT_EQ(tier->List("quiet", std::nullopt, 100).size(), 1);
  for (const ChunkInfo& info : tier->List("loud", std::nullopt, 100)) {
    ASSERT_TRUE(tier->SetPinned("loud", info.key, true).ok());
  }
  const absl::Status refused = put("loud", 20, 1000);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("namespace 'loud' may fill"), std::string::npos) << refused;
  EXPECT_TRUE(IsLimitOfNamespace(refused, "loud")) << refused;
  EXPECT_EQ(tier->List("quiet", std::nullopt, 100).size(), 1);
}

TEST_F(DiskTierTest, LimitsOfNamespacesCountWhatWasThereBeforeTheRestart) {
  const auto of = [](std::string_view tenant, int32_t token) { return SmallAddress(token, 8, {0}, tenant); };
  const auto count = [](DiskTier& tier, std::string_view tenant) {
    return tier.List(tenant, std::nullopt, 100).size();
  };
  {
    auto tier = OpenTier();
    for (int32_t token = 0; token < 6; ++token) {
      ASSERT_TRUE(Put(*tier, of("loud", token)).ok());
      ASSERT_TRUE(Put(*tier, of("quiet", token)).ok());
      now_ += absl::Seconds(1);
    }
    ASSERT_TRUE(tier->SetPinned("loud", of("loud", 0).key, true).ok());
  }
  auto tier = OpenTier();
  tier->LimitNamespaces({{"loud", 2 * kEntryFileBytes}});
  EXPECT_EQ(count(*tier, "loud"), 2);
  EXPECT_EQ(count(*tier, "quiet"), 6);
  EXPECT_EQ(NumFilesIn("entries"), 8 + 1) << "with the pin's";
  ASSERT_TRUE(Put(*tier, of("loud", 10)).ok());
  EXPECT_EQ(count(*tier, "loud"), 2);
  EXPECT_TRUE(tier->Contains(of("loud", 0).key)) << "pinned";
  EXPECT_TRUE(tier->Contains(of("loud", 10).key));
  tier->LimitNamespaces({{"loud", kEntryFileBytes}});
  const absl::Status refused = Put(*tier, of("loud", 11));
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("store_bytes of its tenant"));
}

TEST_F(DiskTierTest, SharesOfNamespacesHoldForWhatARestartFinds) {
  const auto of = [](std::string_view tenant, int32_t token) { return SmallAddress(token, 8, {0}, tenant); };
  const auto count = [](DiskTier& tier, std::string_view tenant) {
    return tier.List(tenant, std::nullopt, 100).size();
  };
  {
    auto tier = OpenTier(/*num_entries=*/20);
    for (int32_t token = 0; token < 8; ++token) {
      ASSERT_TRUE(Put(*tier, of("loud", token), {.compute_cost_seconds = 1000}).ok());
      ASSERT_TRUE(Put(*tier, of("named", token), {.compute_cost_seconds = 1000}).ok());
      now_ += absl::Seconds(1);
    }
    ASSERT_TRUE(Put(*tier, of("quiet", 0)).ok());
    ASSERT_TRUE(tier->SetPinned("loud", of("loud", 0).key, true).ok());
  }
  DiskTier::Options options = TierOptions(/*num_entries=*/20);
  options.namespace_quotas = {.default_share = 0.1, .named = {{"named", 0.3}}};
  auto tier = *DiskTier::Open(options);
  EXPECT_EQ(count(*tier, "loud"), 2);
  EXPECT_TRUE(tier->Contains(of("loud", 0).key)) << "pinned";
  EXPECT_TRUE(tier->Contains(of("loud", 7).key)) << "of equals the oldest go";
  EXPECT_EQ(count(*tier, "named"), 6);
  EXPECT_EQ(count(*tier, "quiet"), 1) << "though it saves the least";
  EXPECT_EQ(NumFilesIn("entries"), 9 + 1) << "with the pin's";
  EXPECT_EQ(tier->Stats().evictions, 8);
}

TEST_F(DiskTierTest, TellsOfWhatItGivesUpThoughItWasUsed) {
  auto tier = *DiskTier::Open(TierOptions(/*num_entries=*/2));
  std::vector<std::pair<ChunkKey, int64_t>> told;
  tier->SetEvictionListener([&](const std::shared_ptr<LowerTierEntry>& entry, int64_t frequency) {
    const PageBuffer buffer(entry->header().layer_bytes());
    EXPECT_TRUE(ReadLayerNow(*entry, 1, buffer.bytes()).ok());
    told.emplace_back(entry->header().address.key, frequency);
  });
  const auto put = [&](int32_t token, int64_t frequency) {
    const ChunkAddress address = SmallAddress(token);
    ASSERT_TRUE(tier->Put(address, *FilledKv(address), {.frequency = frequency}).ok());
  };
  put(1, 3);
  ASSERT_TRUE(OpenNow(*tier, SmallAddress(1).key).ok());
  for (int32_t token = 2; token < 6; ++token) put(token, 1);
  EXPECT_TRUE(told.empty()) << "used once";
  put(6, 9);
  put(7, 9);
  ASSERT_EQ(told.size(), 1);
  EXPECT_EQ(told[0], std::pair(SmallAddress(1).key, int64_t{4}));
}

TEST_F(DiskTierTest, WhatIsOpenStaysReadableWhenErasedEvictedAndPutAgain) {
  auto tier = OpenTier(1);
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  const auto erased = *OpenNow(*tier, address.key);
  EXPECT_FALSE(*tier->Erase("other", address.key));
  EXPECT_TRUE(*tier->Erase("", address.key));
  EXPECT_FALSE(*tier->Erase("", address.key));
  EXPECT_FALSE(memory_.Exists(PathOf(address.key)));
  ASSERT_TRUE(Put(*tier, address).ok());
  const auto evicted = *OpenNow(*tier, address.key);
  ASSERT_TRUE(Put(*tier, SmallAddress(2)).ok());
  EXPECT_FALSE(tier->Contains(address.key));
  const PageBuffer buffer(erased->header().layer_bytes());
  for (const auto& entry : {erased, evicted}) {
    EXPECT_TRUE(ReadLayerNow(*entry, 1, buffer.bytes()).ok());
    EXPECT_TRUE(buffer.bytes() == FilledKv(address)->LayerBytes(1));
  }
  EXPECT_EQ(tier->Stats().erased, 1);
}

TEST_F(DiskTierTest, AFileThatSomeoneRemovedIsAMiss) {
  auto tier = OpenTier();
  const ChunkAddress address = SmallAddress(1);
  ASSERT_TRUE(Put(*tier, address).ok());
  ASSERT_TRUE(memory_.Unlink(PathOf(address.key)).ok());
  EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(tier->Contains(address.key));
  EXPECT_EQ(tier->Stats().vanished, 1);
  ASSERT_TRUE(Put(*tier, address).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, address).ok());
}

TEST_F(DiskTierTest, TemporaryFilesGoAndForeignFilesStay) {
  const std::string hex(64, 'a');
  for (const std::string& path :
       {std::string("/var/chunks/entries/notes.txt"), std::string("/var/chunks/entries/aa/aa/readme"),
        std::string("/var/chunks/entries/aa/zz/file"), "/var/chunks/entries/aa/bb/" + hex + ".kvb1",
        "/var/chunks/entries/aa/aa/" + hex + ".kvb2", "/var/chunks/entries/aa/aa/" + hex.substr(1) + "A.kvb1",
        std::string("/var/chunks/mine"), std::string("/var/chunks/tmp/mine"), "/var/chunks/tmp/" + hex + ".",
        "/var/chunks/tmp/" + hex + ".kvb1", "/var/chunks/tmp/a" + hex + ".3"}) {
    memory_.SetContents(path, std::vector<std::byte>(10));
  }
  memory_.SetContents("/var/chunks/tmp/" + hex + ".3", std::vector<std::byte>(5000));
  auto tier = OpenTier();
  EXPECT_EQ(NumFilesIn("tmp"), 4) << "the folder may have been somebody's before";
  EXPECT_EQ(memory_.AllFiles().size(), 11);
  EXPECT_EQ(tier->Stats().removed_temporary_files, 1);
  EXPECT_EQ(tier->Stats().foreign_files, 6);
  EXPECT_EQ(tier->Stats().quarantined, 0);
}

}  // namespace
}  // namespace kvblend::store
