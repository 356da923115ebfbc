// Which chunks ChunkStore says are stored, so that storing them once more would do nothing.
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using test_support::MakeMemoryLowerTier;
using test_support::MemoryDisk;

constexpr Tier kNotDurable = Tier::kNone;

class AreStoredTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChunkStore> Create(int64_t num_chunks) {
    std::vector<std::unique_ptr<LowerTier>> tiers;
    tiers.push_back(MakeMemoryLowerTier(disk_, Tier::kDisk));
    tiers.push_back(MakeMemoryLowerTier(remote_, kNotDurable));
    return *ChunkStore::Create({.byte_budget = num_chunks * kChunkBytes}, std::move(tiers));
  }
  static void Put(ChunkStore& store, const ChunkAddress& address) {
    ASSERT_TRUE(store.Insert(address, FilledKv(address), {}).ok());
    ASSERT_TRUE(store.FlushWrites(absl::InfiniteFuture()).ok());
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  const std::shared_ptr<MemoryDisk> remote_ = std::make_shared<MemoryDisk>();
  const ChunkAddress chunk_ = SmallAddress(1);
};

TEST_F(AreStoredTest, StoredIsWhatTheDiskHasAndNobodyElseIsAskedForIt) {
  auto store = Create(2);
  Put(*store, chunk_);
  disk_->write_fault = [](const ChunkKey&) { return absl::ResourceExhaustedError("full"); };
  Put(*store, SmallAddress(2));  // in memory and in the remote tier
  remote_->stat_calls = 0;
  const std::vector<ChunkKey> keys = {chunk_.key, SmallAddress(2).key, SmallAddress(3).key};
  EXPECT_EQ(store->AreStored(kAllNamespaces, keys, SmallFormat()), std::vector<bool>({true, false, false}));
  EXPECT_EQ(remote_->stat_calls, 0);
  EXPECT_EQ(store->AreStored("of others", keys, SmallFormat()), std::vector<bool>({false, false, false}));
  EXPECT_EQ(store->AreDurable(kAllNamespaces, keys), std::vector<bool>({true, false, false}));
}

TEST_F(AreStoredTest, WhatAnotherTierLacksIsNotStoredAndComesBackWhenItIsPut) {
  auto store = Create(1);
  Put(*store, chunk_);
  Put(*store, SmallAddress(2));  // and chunk_ is not in memory any more
  const std::vector<ChunkKey> keys = {SmallAddress(2).key, chunk_.key};
  EXPECT_EQ(store->AreStored(kAllNamespaces, keys, SmallFormat()), std::vector<bool>({true, true}));
  for (const ChunkKey& key : keys) remote_->Evict(key, 1);
  EXPECT_EQ(store->AreStored(kAllNamespaces, keys, SmallFormat()), std::vector<bool>({false, false}));
  for (const ChunkAddress& address : {SmallAddress(2), chunk_}) {
    ExpectFilled(std::get<ChunkHandle>(*store->LookupOrReserve(address)));
  }
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_EQ(store->AreStored(kAllNamespaces, keys, SmallFormat()), std::vector<bool>({true, true}));
}

TEST_F(AreStoredTest, WhatDoesNotFitIntoMemoryIsNotStored) {
  auto store = Create(1);
  Put(*store, chunk_);
  EXPECT_EQ(store->AreStored(kAllNamespaces, {chunk_.key}, SmallFormat()), std::vector<bool>({true}));
  store.reset();
  std::vector<std::unique_ptr<LowerTier>> tiers;
  tiers.push_back(MakeMemoryLowerTier(disk_, Tier::kDisk));
  store = *ChunkStore::Create({.byte_budget = kChunkBytes - 1}, std::move(tiers));
  EXPECT_TRUE(store->Stat(kAllNamespaces, chunk_.key).ok());
  EXPECT_EQ(store->AreStored(kAllNamespaces, {chunk_.key}, SmallFormat()), std::vector<bool>({false}));
}

TEST_F(AreStoredTest, WithoutADiskStoredIsWhatIsAnywhere) {
  std::vector<std::unique_ptr<LowerTier>> tiers;
  tiers.push_back(MakeMemoryLowerTier(remote_, kNotDurable));
  auto store = *ChunkStore::Create({.byte_budget = kChunkBytes}, std::move(tiers));
  Put(*store, chunk_);
  Put(*store, SmallAddress(2));  // and chunk_ is in the remote tier alone
  const std::vector<ChunkKey> keys = {chunk_.key, SmallAddress(2).key, SmallAddress(3).key};
  EXPECT_EQ(store->AreStored(kAllNamespaces, keys, SmallFormat()), std::vector<bool>({true, true, false}));
  EXPECT_TRUE(store->AreStored(kAllNamespaces, {}, SmallFormat()).empty());
}

}  // namespace
}  // namespace kvblend::store
