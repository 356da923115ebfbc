#include "engine/store/chunk_store.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/unit/store/chunk_store_fixture.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;

TEST_F(ChunkStoreTest, WhatWasInsertedIsFound) {
  auto store = Create(2);
  const ChunkAddress address = SmallAddress(1);
  EXPECT_FALSE(LookupOne(*store, address.key).has_value());
  ASSERT_TRUE(Put(*store, address, {.compute_cost_seconds = 0.5, .label = "doc 1"}).ok());
  now_ += absl::Seconds(5);
  const auto handle = LookupOne(*store, address.key);
  ASSERT_TRUE(handle.has_value());
  EXPECT_EQ(handle->key(), address.key);
  EXPECT_EQ(handle->anchor_hash(), address.anchor_hash);
  EXPECT_EQ(handle->num_tokens(), 8);
  EXPECT_EQ(handle->tier(), Tier::kHostMemory);
  ExpectFilled(*handle);
  EXPECT_EQ(handle->AcquireLayer(2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(handle->AcquireLayer(-1).status().code(), absl::StatusCode::kInvalidArgument);

  const auto info = store->Stat("", address.key);
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->key, address.key);
  EXPECT_EQ(info->content_key, address.content_key);
  EXPECT_EQ(info->anchor_hash, address.anchor_hash);
  EXPECT_EQ(info->label, "doc 1");
  EXPECT_EQ(info->num_tokens, 8);
  EXPECT_EQ(info->bytes, kChunkBytes);
  EXPECT_EQ(info->hits, 1);
  EXPECT_FALSE(info->pinned);
  EXPECT_EQ(info->compute_cost_seconds, 0.5);
  EXPECT_EQ(info->created, absl::FromUnixSeconds(1000));
  EXPECT_EQ(info->last_used, absl::FromUnixSeconds(1005));

  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.lookups, 2);
  EXPECT_EQ(stats.hits, 1);
  EXPECT_EQ(stats.misses, 1);
  EXPECT_EQ(stats.insertions, 1);
  EXPECT_EQ(stats.bytes, kChunkBytes);
  EXPECT_EQ(stats.idle_bytes, 0);
}

TEST_F(ChunkStoreTest, InsertingTwiceKeepsTheFirst) {
  auto store = Create(2);
  const ChunkAddress address = SmallAddress(1);
  auto first = Put(*store, address, {.label = "first"});
  auto second = Put(*store, address, {.pinned = true, .label = "second"});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(first->AcquireLayer(0)->k.data, second->AcquireLayer(0)->k.data);
  EXPECT_EQ(store->Stat("", address.key)->label, "first");
  EXPECT_TRUE(store->Stat("", address.key)->pinned);
  EXPECT_EQ(store->Stats().duplicate_insertions, 1);
  EXPECT_EQ(store->Stats().bytes, kChunkBytes);
}

TEST_F(ChunkStoreTest, RefusesKvOfAnotherShapeAndBadCosts) {
  auto store = Create(4);
  const ChunkAddress address = SmallAddress(1);
  const auto code = [&](std::unique_ptr<ChunkKv> kv, double cost) {
    return store->Insert(address, std::move(kv), {.compute_cost_seconds = cost}).status().code();
  };
  EXPECT_EQ(code(FilledKv(SmallAddress(1, 7)), 0), absl::StatusCode::kInvalidArgument);
  KvFormat half = SmallFormat();
  half.encoding = kernels::KvEncoding::kF16;
  EXPECT_EQ(code(*ChunkKv::Allocate(half, 8), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(nullptr, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(FilledKv(address), -1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(FilledKv(address), std::numeric_limits<double>::quiet_NaN()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(FilledKv(address), std::numeric_limits<double>::infinity()),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store->Stats().entries, 0);
}

TEST_F(ChunkStoreTest, RefusesBadOptions) {
  EXPECT_EQ(ChunkStore::Create({.byte_budget = -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ChunkStore::Create({.byte_budget = 10, .pinned_byte_limit = 11}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(ChunkStore::Create({.byte_budget = 0}).ok());
}

TEST_F(ChunkStoreTest, ReassignedHandleLetsGoOfWhatItHeld) {
  auto store = Create(2);
  ChunkHandle a = *Put(*store, SmallAddress(1));
  ChunkHandle b = *Put(*store, SmallAddress(2));
  EXPECT_EQ(store->Stats().idle_bytes, 0);
  a = std::move(b);
  EXPECT_EQ(a.key(), SmallAddress(2).key);
  EXPECT_EQ(store->Stats().idle_bytes, kChunkBytes);
}

TEST_F(ChunkStoreTest, PinsAreLimitedAndPersist) {
  auto store = Create(4, /*num_pinned=*/1);
  for (int token : {1, 2, 3}) ASSERT_TRUE(Put(*store, SmallAddress(token)).ok());
  EXPECT_TRUE(store->Pin("", SmallAddress(1).key).ok());
  EXPECT_TRUE(store->Pin("", SmallAddress(1).key).ok());
  const absl::Status over = store->Pin("", SmallAddress(2).key);
  EXPECT_EQ(over.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(over.message(), HasSubstr(std::to_string(kChunkBytes)));
  EXPECT_EQ(Put(*store, SmallAddress(4), {.pinned = true}).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Stats().pinned_bytes, kChunkBytes);
  EXPECT_EQ(store->Stats().pinned_entries, 1);
  EXPECT_EQ(store->Pin("", SmallAddress(9).key).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store->Unpin("", SmallAddress(9).key).code(), absl::StatusCode::kNotFound);

  for (int token = 10; token < 20; ++token) ASSERT_TRUE(Put(*store, SmallAddress(token)).ok());
  EXPECT_TRUE(store->Stat("", SmallAddress(1).key).ok());
  EXPECT_TRUE(store->Unpin("", SmallAddress(1).key).ok());
  EXPECT_TRUE(store->Unpin("", SmallAddress(1).key).ok());
  EXPECT_EQ(store->Stats().pinned_bytes, 0);
  for (int token = 20; token < 30; ++token) ASSERT_TRUE(Put(*store, SmallAddress(token)).ok());
  EXPECT_FALSE(store->Stat("", SmallAddress(1).key).ok());
}

TEST_F(ChunkStoreTest, AnyAnchorPrefersAnchoredEntriesWhateverTheOrderOfInsertion) {
  const ChunkAddress isolated = SmallAddress(1, 8, {});
  const ChunkAddress a = SmallAddress(1, 8, {5});
  const ChunkAddress b = SmallAddress(1, 8, {6});
  const ChunkKey best = std::min(a.key, b.key);
  for (const auto& order : {std::vector{isolated, a, b}, std::vector{b, a, isolated}}) {
    auto store = Create(4);
    EXPECT_FALSE(LookupOneAnyAnchor(*store, a.content_key).has_value());
    for (const ChunkAddress& address : order) ASSERT_TRUE(Put(*store, address).ok());
    ASSERT_TRUE(Put(*store, SmallAddress(2)).ok());
    EXPECT_EQ(LookupOneAnyAnchor(*store, a.content_key)->key(), best);
    store->Erase("", a.key).IgnoreError();
    store->Erase("", b.key).IgnoreError();
    EXPECT_EQ(LookupOneAnyAnchor(*store, a.content_key)->key(), isolated.key);
    store->Erase("", isolated.key).IgnoreError();
    EXPECT_FALSE(LookupOneAnyAnchor(*store, a.content_key).has_value());
    EXPECT_EQ(store->Stats().other_anchor_lookups, 4);
    EXPECT_EQ(store->Stats().other_anchor_hits, 2);
  }
}

}  // namespace
}  // namespace kvblend::store
