#include "engine/serve/prefetcher.h"

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend {
namespace {

using store::ChunkStore;
using store::FilledKv;
using store::kChunkBytes;
using store::SmallAddress;

class PrefetcherTest : public testing::Test {
 protected:
  PrefetcherTest() {
    auto first = Create(4);
    for (int32_t token = 0; token < 8; ++token) {
      EXPECT_TRUE(first->Insert(SmallAddress(token), FilledKv(SmallAddress(token)), {}).ok());
    }
    EXPECT_TRUE(first->FlushWrites(absl::InfiniteFuture()).ok());
  }

  std::unique_ptr<ChunkStore> Create(int64_t num_chunks) {
    return *ChunkStore::Create({.byte_budget = num_chunks * kChunkBytes},
                               Only(test_support::MakeMemoryLowerTier(disk_)));
  }
  static std::vector<ChunkKey> Keys(int32_t first, int32_t count) {
    std::vector<ChunkKey> keys;
    for (int32_t token = first; token < first + count; ++token) keys.push_back(SmallAddress(token).key);
    return keys;
  }

  const std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
};

TEST_F(PrefetcherTest, WhatWasPrefetchedIsInMemoryAndNoHit) {
  auto store = Create(16);
  PrefetchQueue queue(*store, 16 * kChunkBytes);
  const auto prefetch = queue.Add(Keys(0, 4));
  queue.LookUpNext();
  EXPECT_EQ(store->Stats().prefetched, 4);
  EXPECT_EQ(store->Stats().lookups, 0);
  EXPECT_EQ(store->Stats().idle_bytes, 0) << "held until the prompt has looked";
  for (int32_t token = 0; token < 4; ++token) {
    const auto handle = LookupOne(*store, SmallAddress(token).key);
    ASSERT_TRUE(handle.has_value());
    EXPECT_EQ(handle->tier(), Tier::kHostMemory);
    ExpectFilled(*handle);
  }
  EXPECT_EQ(store->Stats().hits, 4);
  EXPECT_EQ(store->Stats().lower_hits, 0);
}

TEST_F(PrefetcherTest, ItReadsBehindPromptsAndBeforeWhatNoPromptAsksFor) {
  auto store = Create(16);
  disk_->HoldReads(true);
  PrefetchQueue queue(*store, 16 * kChunkBytes);
  const auto prefetch = queue.Add(Keys(0, 1));
  queue.LookUpNext();
  EXPECT_EQ(disk_->next_read()->reader.purpose, store::ReadFor::kQueuedPrompt);
}

TEST_F(PrefetcherTest, DroppedBeforeItsTurnItReadsNothing) {
  auto store = Create(16);
  PrefetchQueue queue(*store, 16 * kChunkBytes);
  auto first = queue.Add(Keys(0, 1));
  queue.Add(Keys(1, 1)).reset();
  queue.LookUpNext();
  queue.LookUpNext();
  EXPECT_EQ(store->Stats().prefetched, 1);
  first.reset();
  EXPECT_EQ(store->Stats().idle_bytes, store->Stats().bytes);
}

TEST_F(PrefetcherTest, PromptsThatWaitHoldABoundedShare) {
  auto store = Create(16);
  PrefetchQueue queue(*store, 16 * kChunkBytes);  // holds 4 at the most before it stops
  std::vector<std::shared_ptr<Prefetch>> waiting;
  for (int32_t token = 0; token < 8; token += 2) {
    waiting.push_back(queue.Add(Keys(token, 2)));
    queue.LookUpNext();
  }
  EXPECT_EQ(store->Stats().prefetched, 4);
  waiting.erase(waiting.begin());
  waiting.push_back(queue.Add(Keys(6, 2)));
  queue.LookUpNext();
  EXPECT_EQ(store->Stats().prefetched, 6);
}

TEST_F(PrefetcherTest, AThreadLooksUpUntilItIsStopped) {
  auto store = Create(16);
  absl::Notification read;
  disk_->read_fault = [&](const ChunkKey& key, int32_t layer) {
    if (key == SmallAddress(1).key && layer == 0) read.Notify();
    return absl::OkStatus();
  };
  Prefetcher prefetcher(*store, 16 * kChunkBytes);
  const auto first = prefetcher.Start(Keys(0, 1)), second = prefetcher.Start(Keys(1, 1));
  read.WaitForNotification();
}

TEST_F(PrefetcherTest, OnePrefetchIsNoSecondUse) {
  auto store = Create(4);
  // Two that are used again and again.
  for (int32_t token = 0; token < 2; ++token) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(LookupOne(*store, SmallAddress(token).key).has_value());
  }
  PrefetchQueue queue(*store, 4 * kChunkBytes);
  for (int32_t token = 2; token < 8; ++token) {
    const auto prefetch = queue.Add(Keys(token, 1));
    queue.LookUpNext();
    ASSERT_TRUE(LookupOne(*store, SmallAddress(token).key).has_value());
  }
  for (int32_t token = 0; token < 2; ++token) {
    EXPECT_EQ(store->Stat(kAllNamespaces, SmallAddress(token).key)->tier, Tier::kHostMemory);
  }
}

}  // namespace
}  // namespace kvblend
