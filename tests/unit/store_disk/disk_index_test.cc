#include "engine/store/disk/disk_index.h"

#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store::internal {
namespace {

DiskIndex::Slot Insert(DiskIndex& index, const ChunkAddress& address, double cost = 0, int64_t bytes = 4096,
                       int64_t created = 0, std::string_view label = "") {
  return index.Insert({.address = address,
                       .label = label,
                       .compute_cost_seconds = cost,
                       .created = absl::FromUnixSeconds(created),
                       .bytes = bytes});
}

TEST(DiskIndexTest, RandomOperationsAgainstAMap) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    DiskIndex index({.quota_bytes = int64_t{1} << 40});
    std::map<std::pair<std::string, ChunkKey>, std::pair<int64_t, std::string>> model;  // bytes and label
    std::set<ChunkKey> pinned;
    std::set<ChunkKey> claimed;
    for (int step = 0; step < 5000; ++step) {
      const std::string tenant(random() % 3, 't');
      const ChunkAddress address = SmallAddress(static_cast<int32_t>(random() % 200), 1, {0}, tenant);
      const std::optional<DiskIndex::Slot> slot = index.Find(address.key);
      const auto known = model.find({tenant, address.key});
      ASSERT_EQ(slot.has_value(), known != model.end());
      if (!slot.has_value()) {
        const auto bytes = static_cast<int64_t>(1 + random() % 10000);
        const std::string label(random() % 257, static_cast<char>('a' + random() % 26));
        Insert(index, address, static_cast<double>(random() % 5), bytes, 0, label);
        model[{tenant, address.key}] = {bytes, label};
        continue;
      }
      const ChunkInfo info = index.InfoOf(*slot);
      EXPECT_EQ(info.key, address.key);
      EXPECT_EQ(info.tenant_namespace, tenant);
      EXPECT_EQ(info.bytes, known->second.first);
      EXPECT_EQ(info.label, known->second.second);
      if (random() % 20 == 0) index.RetryStuck(2);
      switch (random() % 5) {
        case 0:
          index.Erase(*slot);
          model.erase(known);
          pinned.erase(address.key);
          break;
        case 1:
          index.Touch(*slot, absl::FromUnixSeconds(step));
          EXPECT_EQ(index.InfoOf(*slot).hits, info.hits + 1);
          break;
        case 2:
          index.SetPinned(*slot, random() % 2 == 0);
          index.at(*slot).pinned ? (void)pinned.insert(address.key) : (void)pinned.erase(address.key);
          break;
        case 3:
          if (index.IsClaimed(address.key)) {
            index.Unclaim(address.key);
            claimed.erase(address.key);
          } else {
            index.Claim(address.key);
            claimed.insert(address.key);
          }
          break;
        case 4:
          for (const DiskIndex::Victim& victim : index.EvictAtLeast(1)) {
            const ChunkKey& key = victim.info.key;
            EXPECT_FALSE(pinned.contains(key) || claimed.contains(key));
            EXPECT_TRUE(index.IsClaimed(key));
            // Its file is removed, or can't be, or was not tried.
            if (const auto outcome = random() % 3; outcome == 0) {
              EXPECT_EQ(std::erase_if(model, [&](const auto& e) { return e.first.second == key; }), 1u);
            } else {
              index.PutBack(victim, /*stuck=*/outcome == 1);
            }
            index.Unclaim(key);
          }
          break;
      }
    }
    EXPECT_EQ(index.size(), static_cast<int64_t>(model.size()));
    int64_t bytes = 0;
    auto expected = model.begin();
    for (const ChunkInfo& info : index.List(kAllNamespaces, std::nullopt, 100000)) {
      EXPECT_EQ(std::pair(info.tenant_namespace, info.key), expected->first);
      ++expected;
      bytes += info.bytes;
    }
    EXPECT_EQ(expected, model.end());
    EXPECT_EQ(index.bytes(), bytes);
  }
}

TEST(DiskIndexTest, VictimsAreTheCheapestPerByteThenTheOldest) {
  DiskIndex index({.quota_bytes = 6000});
  Insert(index, SmallAddress(0), 1, 1000, 30);
  Insert(index, SmallAddress(1), 1, 1000, 10);
  Insert(index, SmallAddress(2), 1, 2000, 50);
  Insert(index, SmallAddress(3), 5, 1000, 0);
  Insert(index, SmallAddress(4), std::numeric_limits<double>::quiet_NaN(), 1000, 70);
  index.RequeueOldestFirst();
  EXPECT_TRUE(index.EvictAtLeast(6001).empty()) << "nothing is given up for what would not fit anyway";
  for (const int32_t next : {4, 2, 1, 0, 3}) {
    const std::vector<DiskIndex::Victim> victims = index.EvictAtLeast(1);
    ASSERT_EQ(victims.size(), 1u);
    EXPECT_EQ(victims[0].info.key, SmallAddress(next).key);
  }
  EXPECT_EQ(index.size(), 0);
}

TEST(DiskIndexTest, WhatIsSetAsideCountsUntilItIsThere) {
  DiskIndex index({.quota_bytes = 5000});
  Insert(index, SmallAddress(0), 2, 2000);
  Insert(index, SmallAddress(1), 1, 2000);
  ASSERT_EQ(index.Reserve("", 1000)->size(), 0u);
  ASSERT_EQ(index.Reserve("", 2000)->size(), 1u);
  EXPECT_FALSE(index.Find(SmallAddress(1).key).has_value());
  index.Claim(SmallAddress(0).key);
  EXPECT_EQ(index.Reserve("", 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(index.size(), 1);
  index.EndReservation("", 2000);
  EXPECT_EQ(index.Reserve("", 2000)->size(), 0u);
  EXPECT_EQ(index.reserved_bytes(), 3000);
}

TEST(DiskIndexTest, AStuckEntryIsAsItWasButStaysUntilItIsTriedAgain) {
  DiskIndex index({.quota_bytes = 2000, .namespace_quotas = {.default_share = 0.5}});
  const ChunkAddress address = SmallAddress(0, 8, {1}, "tenant");
  const DiskIndex::Slot slot = Insert(index, address, 2, 1000, 7, "a label");
  index.Touch(slot, absl::FromUnixSeconds(9));
  Insert(index, SmallAddress(1), 1, 1000);
  index.SetSuspect(slot);
  const ChunkInfo before = index.InfoOf(slot);
  std::vector<DiskIndex::Victim> victims = index.EvictAtLeast(1001);
  ASSERT_EQ(victims.size(), 2u);
  ASSERT_EQ(index.size(), 0);
  for (const DiskIndex::Victim& victim : victims) {
    index.PutBack(victim, /*stuck=*/victim.info.key == address.key);
    index.Unclaim(victim.info.key);
  }
  const ChunkInfo after = index.InfoOf(*index.Find(address.key));
  const auto fields = [](const ChunkInfo& info) {
    return std::tuple(info.key, info.content_key, info.anchor_hash, info.tenant_namespace, info.label,
                      info.num_tokens, info.bytes, info.pinned, info.hits, info.compute_cost_seconds,
                      info.created, info.last_used);
  };
  EXPECT_EQ(fields(after), fields(before));
  EXPECT_TRUE(index.at(*index.Find(address.key)).suspect);
  EXPECT_EQ(index.bytes(), 2000);
  victims = index.EvictAtLeast(1);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].info.key, SmallAddress(1).key);
  EXPECT_FALSE(victims[0].was_stuck);
  EXPECT_TRUE(index.EvictAtLeast(1).empty());
  EXPECT_EQ(index.Reserve("tenant", 1).status().code(), absl::StatusCode::kResourceExhausted);
  index.RetryStuck(1);
  victims = *index.Reserve("tenant", 1);
  ASSERT_EQ(victims.size(), 1u);
  EXPECT_EQ(victims[0].info.key, address.key);
  EXPECT_EQ(victims[0].frequency, 2);
  EXPECT_TRUE(victims[0].was_stuck);
}

TEST(DiskIndexTest, FilesThatAreStillThereCountForTheirNamespace) {
  DiskIndex index({.quota_bytes = 4000, .namespace_quotas = {.default_share = 0.5}});
  index.HoldRoom("tenant", 1500);
  EXPECT_EQ(index.Reserve("tenant", 501).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(index.reserved_bytes(), 0) << "is not about to be written";
  EXPECT_TRUE(index.Reserve("other", 2000).ok());
  EXPECT_EQ(index.Reserve("third", 501).status().code(), absl::StatusCode::kResourceExhausted);
  index.EndHold("tenant", 1500);
  EXPECT_TRUE(index.Reserve("tenant", 2000).ok());
}

}  // namespace
}  // namespace kvblend::store::internal
