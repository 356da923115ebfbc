// Entries of another model or format, and such as memory can't hold: left over from a server with other
// settings, and not in the way of this one.
#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

ChunkAddress Of(int32_t token, const KvFormat& format = SmallFormat(), uint8_t model = 0,
                const std::string& tenant = "", int32_t num_tokens = 8) {
  const std::vector<int32_t> token_ids(num_tokens, token);
  Digest fingerprint{};
  fingerprint[0] = model;
  return AddressOf({.model_fingerprint = fingerprint,
                    .format = format,
                    .tenant_namespace = tenant,
                    .token_ids = token_ids});
}

KvFormat OtherFormat() {
  KvFormat format = SmallFormat();
  format.encoding = kernels::KvEncoding::kInt8;
  return format;
}

UsableEntries Usable() {
  return {.model_fingerprint = {},
          .format = SmallFormat(),
          .max_kv_bytes = *ChunkKv::SizeBytes(SmallFormat(), 8)};
}

class UnusableEntriesTest : public DiskTierTest {
 protected:
  void SetUp() override {
    const auto tier = OpenTier();
    for (const ChunkAddress& address : {own_, other_format_, other_model_, large_}) {
      ASSERT_TRUE(Put(*tier, address, {.compute_cost_seconds = 1000}).ok());
    }
  }
  std::unique_ptr<DiskTier> Restart(int64_t num_entries = 100) {
    auto tier = OpenTier(num_entries);
    tier->SetUsable(Usable());
    return tier;
  }

  const ChunkAddress own_ = Of(1);
  const ChunkAddress other_format_ = Of(2, OtherFormat());
  const ChunkAddress other_model_ = Of(3, SmallFormat(), 1);
  const ChunkAddress large_ = Of(4, SmallFormat(), 0, "", 64);
  const std::vector<ChunkAddress> unusable_ = {other_format_, other_model_, large_};
};

TEST_F(UnusableEntriesTest, AreNoEntriesButTakeUpTheirBytes) {
  const auto tier = OpenTier();
  const DiskTierStats all = tier->Stats();
  EXPECT_EQ(all.entries, 4);
  EXPECT_EQ(all.unusable_entries, 0);
  tier->SetUsable(Usable());
  const DiskTierStats stats = tier->Stats();
  EXPECT_EQ(stats.entries, 1);
  EXPECT_EQ(stats.bytes, all.bytes);
  EXPECT_EQ(stats.unusable_entries, 3);
  EXPECT_EQ(stats.unusable_bytes, all.bytes - kEntryFileBytes);
  ASSERT_THAT(tier->List(kAllNamespaces, std::nullopt, 10), SizeIs(1));
  EXPECT_EQ(tier->List(kAllNamespaces, std::nullopt, 10)[0].key, own_.key);
  for (const ChunkAddress& address : unusable_) {
    EXPECT_FALSE(tier->Contains(address.key));
    EXPECT_FALSE(tier->Stat(kAllNamespaces, address.key).has_value());
    EXPECT_FALSE(tier->FindAnyAnchor({address.content_key}, absl::InfiniteFuture())[0].has_value());
    EXPECT_EQ(OpenNow(*tier, address.key).status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(tier->SetPinned(kAllNamespaces, address.key, true).code(), absl::StatusCode::kNotFound);
    EXPECT_TRUE(memory_.Exists(PathOf(address.key)));
  }
  EXPECT_TRUE(ReadAndCompare(*tier, own_).ok());
}

TEST_F(UnusableEntriesTest, TheLogSaysWhatTheyAre) {
  const auto tier = OpenTier();
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, large_.key, true).ok());
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  tier->SetUsable(Usable());
  spdlog::set_default_logger(before);
  EXPECT_THAT(log.str(), HasSubstr("/var/chunks holds, 3 entries of"));
  EXPECT_THAT(log.str(), HasSubstr("1 of another model, 1 in another format than f32, 1 larger than memory"));
  EXPECT_THAT(log.str(), HasSubstr("removed first when room is needed, but for 1 that are pinned"));
}

TEST_F(UnusableEntriesTest, GoBeforeAllOthers) {
  int64_t bytes = 0;
  {
    const auto tier = OpenTier();
    ASSERT_TRUE(tier->Erase(kAllNamespaces, large_.key).ok());
    for (int32_t use = 0; use < 5; ++use) ASSERT_TRUE(ReadAndCompare(*tier, other_format_).ok());
    for (int32_t use = 0; use < 5; ++use) ASSERT_TRUE(ReadAndCompare(*tier, other_model_).ok());
    bytes = tier->Stats().bytes;
  }
  DiskTier::Options options = TierOptions();
  options.quota_bytes = bytes;
  auto tier = *DiskTier::Open(options);
  int32_t demoted = 0;
  tier->SetEvictionListener([&](const std::shared_ptr<LowerTierEntry>&, int64_t) { ++demoted; });
  tier->SetUsable(Usable());
  ASSERT_TRUE(Put(*tier, Of(11)).ok());  // worth nothing, as computing it took no time
  ASSERT_TRUE(Put(*tier, Of(12)).ok());
  for (const ChunkAddress& address : {own_, Of(11), Of(12)}) EXPECT_TRUE(tier->Contains(address.key));
  EXPECT_EQ(tier->Stats().unusable_entries, 0);
  EXPECT_EQ(tier->Stats().unusable_bytes, 0);
  EXPECT_EQ(tier->Stats().evictions, 2);
  EXPECT_EQ(demoted, 0);
  EXPECT_FALSE(memory_.Exists(PathOf(other_model_.key)));
}

TEST_F(UnusableEntriesTest, ThePinsOfTheseStayAndTakeNoneOfTheLimitOfOnesOwn) {
  {
    const auto tier = OpenTier(100);
    ASSERT_TRUE(tier->SetPinned(kAllNamespaces, other_model_.key, true).ok());
    ASSERT_TRUE(tier->Erase(kAllNamespaces, large_.key).ok());
    ASSERT_TRUE(tier->Erase(kAllNamespaces, other_format_.key).ok());
  }
  auto tier = Restart(3);
  EXPECT_EQ(tier->Stats().pinned_entries, 0);
  EXPECT_EQ(tier->Stats().pinned_bytes, 0);
  EXPECT_TRUE(tier->SetPinned(kAllNamespaces, own_.key, true).ok()) << "half of three is one";
  ASSERT_TRUE(Put(*tier, Of(11)).ok());
  ASSERT_TRUE(Put(*tier, Of(12)).ok());
  EXPECT_FALSE(tier->Contains(Of(11).key));
  EXPECT_TRUE(memory_.Exists(PathOf(other_model_.key)));
  EXPECT_TRUE(memory_.Exists(PathOf(other_model_.key, ".pin")));
  tier.reset();
  EXPECT_EQ(OpenTier(3)->Stats().pinned_entries, 2) << "as their own server would find them";
}

TEST_F(UnusableEntriesTest, CanBeErasedByTheirKeys) {
  const auto tier = Restart();
  EXPECT_FALSE(*tier->Erase("other", other_format_.key));
  for (const ChunkAddress& address : unusable_) EXPECT_TRUE(*tier->Erase("", address.key));
  EXPECT_EQ(tier->Stats().unusable_entries, 0);
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
  EXPECT_EQ(NumFilesIn("entries"), 1);
}

TEST_F(UnusableEntriesTest, OfANamespaceGoFirstWhereItHasALimit) {
  {
    const auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, Of(21, SmallFormat(), 1, "tenant"), {.compute_cost_seconds = 1000}).ok());
    ASSERT_TRUE(Put(*tier, Of(22, SmallFormat(), 0, "tenant")).ok());
  }
  const auto tier = Restart();
  tier->LimitNamespaces({{"tenant", kEntryFileBytes}});
  EXPECT_TRUE(tier->Contains(Of(22, SmallFormat(), 0, "tenant").key));
  EXPECT_EQ(tier->Stats().unusable_entries, 3);
}

TEST_F(UnusableEntriesTest, WhatCannotBeRemovedStaysUnusable) {
  int64_t bytes = 0;
  {
    const auto tier = OpenTier();
    bytes = tier->Stats().bytes;
  }
  DiskTier::Options options = TierOptions();
  options.quota_bytes = bytes + kEntryFileBytes / 2;
  auto tier = *DiskTier::Open(options);
  tier->SetUsable(Usable());
  faulty_.SetFault([&](int64_t, FaultyFileSystem::Operation operation, const std::string&) {
    return operation == FaultyFileSystem::Operation::kUnlink ? absl::InternalError("input/output error")
                                                             : absl::OkStatus();
  });
  EXPECT_FALSE(Put(*tier, Of(11)).ok());
  faulty_.Heal();
  EXPECT_EQ(tier->Stats().entries, 1);
  EXPECT_EQ(tier->Stats().unusable_entries, 3);
  EXPECT_THAT(tier->List(kAllNamespaces, std::nullopt, 10), SizeIs(1));
}

}  // namespace
}  // namespace kvblend::store
