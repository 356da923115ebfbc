// ChunkStore with a tier below host memory.
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "engine/store/chunk_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;

class LowerTierTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChunkStore> Create(int64_t num_chunks, int64_t max_queued_write_bytes = 1 << 30) {
    return *ChunkStore::Create({.byte_budget = num_chunks * kChunkBytes,
                                .max_queued_write_bytes = max_queued_write_bytes,
                                .now = [] { return absl::FromUnixSeconds(1000); }},
                               Only(test_support::MakeMemoryLowerTier(disk_)));
  }
  static void Put(ChunkStore& store, const ChunkAddress& address, InsertOptions options = {}) {
    ASSERT_TRUE(store.Insert(address, FilledKv(address), options).ok());
    ASSERT_TRUE(store.WaitUntilDurable(address.key, absl::InfiniteFuture()).ok());
  }
  static absl::StatusCode Acquire(const ChunkHandle& handle, int32_t layer) {
    return handle.AcquireLayer(layer, absl::Now()).status().code();
  }

  const std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
};

TEST_F(LowerTierTest, WhatWasEvictedIsFoundBelow) {
  auto store = Create(2);
  for (int32_t token = 0; token < 5; ++token) {
    Put(*store, SmallAddress(token), {.compute_cost_seconds = 0.5, .label = "doc"});
  }
  EXPECT_EQ(store->Stats().entries, 2);
  EXPECT_EQ(disk_->entries(), 5);
  for (int32_t token = 0; token < 5; ++token) {
    const auto handle = LookupOne(*store, SmallAddress(token).key);
    ASSERT_TRUE(handle.has_value());
    ExpectFilled(*handle);
    EXPECT_EQ(handle->anchor_hash(), SmallAddress(token).anchor_hash);
    EXPECT_EQ(store->Stat(kAllNamespaces, handle->key())->label, "doc");
    EXPECT_EQ(store->Stat(kAllNamespaces, handle->key())->compute_cost_seconds, 0.5);
  }
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.hits, 5);
  EXPECT_EQ(stats.misses, 0);
  EXPECT_GE(stats.lower_hits, 3);
  EXPECT_EQ(stats.written_entries, 5);
  EXPECT_LE(stats.bytes, stats.byte_budget);
}

TEST_F(LowerTierTest, ARestartKeepsEverything) {
  {
    auto store = Create(8);
    Put(*store, SmallAddress(1), {.pinned = true});
    Put(*store, SmallAddress(2, 0));  // without tokens
    Put(*store, SmallAddress(3, 8, {0}, "tenant"));
  }
  auto store = Create(8);
  EXPECT_EQ(store->Stats().entries, 0);
  const auto first = LookupOne(*store, SmallAddress(1).key);
  ASSERT_TRUE(first.has_value());
  ExpectFilled(*first);
  EXPECT_TRUE(store->Stat(kAllNamespaces, first->key())->pinned);
  const auto empty = LookupOne(*store, SmallAddress(2, 0).key);
  ASSERT_TRUE(empty.has_value());
  EXPECT_TRUE(empty->AcquireLayer(1).ok());
  EXPECT_FALSE(store->Stat("", SmallAddress(3, 8, {0}, "tenant").key).ok());
  EXPECT_EQ(store->Stat("tenant", SmallAddress(3, 8, {0}, "tenant").key)->tier, Tier::kDisk);
}

TEST_F(LowerTierTest, LayersArriveOneByOneAndThoseOfEarlierPromptsFirst) {
  { Put(*Create(8), SmallAddress(1)); }
  { Put(*Create(8), SmallAddress(2)); }
  auto store = Create(8);
  disk_->HoldReads(true);
  PromptReads earlier(store->NewPrompt()), later(store->NewPrompt());
  const auto second = LookupOne(*store, SmallAddress(2).key, &later);
  const auto first = LookupOne(*store, SmallAddress(1).key, &earlier);
  EXPECT_EQ(disk_->waiting_reads(), 0);
  later.AskForAll();
  earlier.AskForAll();
  EXPECT_EQ(disk_->waiting_reads(), 4);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->tier(), Tier::kDisk);
  EXPECT_EQ(Acquire(*first, 0), absl::StatusCode::kDeadlineExceeded);
  disk_->Deliver();
  EXPECT_EQ(Acquire(*first, 0), absl::StatusCode::kOk);
  EXPECT_EQ(Acquire(*first, 1), absl::StatusCode::kDeadlineExceeded);
  disk_->Deliver();
  EXPECT_EQ(Acquire(*first, 1), absl::StatusCode::kOk);
  EXPECT_EQ(Acquire(*second, 0), absl::StatusCode::kDeadlineExceeded);
  ExpectFilled(*first);
  EXPECT_EQ(LookupOne(*store, SmallAddress(1).key)->tier(), Tier::kHostMemory);
  disk_->DeliverAll();
  ExpectFilled(*second);
}

TEST_F(LowerTierTest, PromptsReadBeforeWhateverNobodyWaitsFor) {
  for (int32_t token = 2; token <= 5; ++token) Put(*Create(8), SmallAddress(token));
  auto store = Create(8);
  disk_->HoldReads(true);
  // In the wrong order, and each before the prompt comes.
  {
    PromptReads reads(store->NewPrompt());
    const auto given_up = LookupOne(*store, SmallAddress(2).key, &reads);
    given_up->AskForLayer(0);
  }  // the rest of it is for nobody
  const auto prefetched = store->Prefetch({SmallAddress(3).key});
  const auto stored = std::get<ChunkHandle>(*store->LookupOrReserve(SmallAddress(4)));
  const auto queued = store->Prefetch({SmallAddress(5).key}, ReadFor::kQueuedPrompt);
  std::vector<ReadFor> order;
  while (const auto next = disk_->next_read()) {
    order.push_back(next->reader.purpose);
    disk_->Deliver();
  }
  EXPECT_THAT(order, testing::ElementsAre(ReadFor::kPrompt, ReadFor::kQueuedPrompt, ReadFor::kQueuedPrompt,
                                          ReadFor::kPut, ReadFor::kPut, ReadFor::kPrefetch,
                                          ReadFor::kPrefetch, ReadFor::kNobody));
}

TEST_F(LowerTierTest, APromptHastensWhatWasOnlyPrefetched) {
  for (int32_t token = 1; token <= 3; ++token) Put(*Create(8), SmallAddress(token));
  auto store = Create(8);
  disk_->HoldReads(true);
  const auto prefetched = store->Prefetch({SmallAddress(1).key, SmallAddress(2).key});
  const auto stored = std::get<ChunkHandle>(*store->LookupOrReserve(SmallAddress(3)));
  // As a prompt does it: it looks up, and then asks layer after layer.
  PromptReads reads(store->NewPrompt());
  const auto handle = LookupOne(*store, SmallAddress(2).key, &reads);
  handle->AskForLayer(0);
  disk_->Deliver();
  EXPECT_EQ(Acquire(*handle, 0), absl::StatusCode::kOk);
  EXPECT_EQ(disk_->next_read()->reader.purpose, ReadFor::kPut);
  EXPECT_EQ(Acquire(*handle, 1), absl::StatusCode::kDeadlineExceeded) << "waiting asks as well";
  EXPECT_EQ(disk_->next_read()->reader, reads.reader());
  EXPECT_EQ(disk_->waiting_reads(), 5) << "none is read twice";
  disk_->Deliver();
  EXPECT_EQ(Acquire(*handle, 1), absl::StatusCode::kOk);
  // Others that ask later and less do not put it back.
  const auto as_prompt = LookupOne(*store, SmallAddress(1).key);
  const auto again = store->Prefetch({SmallAddress(1).key});
  EXPECT_EQ(disk_->next_read()->reader.purpose, ReadFor::kPrompt);
  disk_->DeliverAll();
}

TEST_F(LowerTierTest, WaitingForALayerEndsWhenItComes) {
  { Put(*Create(8), SmallAddress(1)); }
  auto store = Create(8);
  disk_->HoldReads(true);
  const auto waiting = LookupOne(*store, SmallAddress(1).key);
  std::thread reader([&] { EXPECT_TRUE(waiting->AcquireLayer(1).ok()); });
  disk_->DeliverAll();
  reader.join();
}

TEST_F(LowerTierTest, TwoPromptsShareOneArrival) {
  { Put(*Create(8), SmallAddress(1)); }
  auto store = Create(8);
  disk_->HoldReads(true);
  const auto a = LookupOne(*store, SmallAddress(1).key), b = LookupOne(*store, SmallAddress(1).key);
  EXPECT_EQ(disk_->waiting_reads(), 2);
  disk_->DeliverAll();
  ExpectFilled(*a);
  ExpectFilled(*b);
  EXPECT_EQ(a->AcquireLayer(0)->k.data, b->AcquireLayer(0)->k.data);
  EXPECT_EQ(store->Stats().lower_hits, 1);
}

TEST_F(LowerTierTest, AnEntryThatCannotBeReadIsAMissFromThenOn) {
  for (const int32_t bad_layer : {0, 1}) {
    { Put(*Create(8), SmallAddress(1)); }
    auto store = Create(8);
    disk_->read_fault = [=](const ChunkKey&, int32_t layer) {
      return layer == bad_layer ? absl::DataLossError("checksum") : absl::OkStatus();
    };
    const auto handle = LookupOne(*store, SmallAddress(1).key);
    ASSERT_TRUE(handle.has_value());
    EXPECT_TRUE(handle->lost());
    const absl::Status status = handle->AcquireLayer(bad_layer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(),
                HasSubstr("layer " + std::to_string(bad_layer) + " could not be read: checksum"));
    disk_->read_fault = nullptr;
    EXPECT_FALSE(LookupOne(*store, SmallAddress(1).key).has_value());
    EXPECT_FALSE(LookupOneAnyAnchor(*store, SmallAddress(1).content_key).has_value());
    EXPECT_TRUE(std::holds_alternative<Reservation>(*store->LookupOrReserve(SmallAddress(1))));
    EXPECT_EQ(store->Stats().failed_entries, 1);
    Put(*store, SmallAddress(1));  // computed again
    ExpectFilled(*LookupOne(*store, SmallAddress(1).key));
    store->Erase(kAllNamespaces, SmallAddress(1).key).IgnoreError();
  }
}

class UnreadableEntryTest : public LowerTierTest {
 protected:
  // A store whose first entry the device failed to read just now, by now_.
  std::unique_ptr<ChunkStore> StoreThatFailedToRead() {
    { Put(*Create(8), SmallAddress(1)); }
    auto store = *ChunkStore::Create({.byte_budget = 8 * kChunkBytes, .now = [this] { return now_; }},
                                     Only(test_support::MakeMemoryLowerTier(disk_)));
    disk_->read_fault = [](const ChunkKey&, int32_t) { return absl::UnavailableError("cable"); };
    EXPECT_TRUE(LookupOne(*store, SmallAddress(1).key)->lost());
    disk_->read_fault = nullptr;
    return store;
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
};

// Whoever asks again at once would get the same error, and plan the same prompt for ever.
TEST_F(UnreadableEntryTest, IsLeftAloneForAWhile) {
  const auto store = StoreThatFailedToRead();
  EXPECT_TRUE(disk_->Contains(SmallAddress(1).key));
  EXPECT_FALSE(LookupOne(*store, SmallAddress(1).key).has_value());
  EXPECT_FALSE(LookupOneAnyAnchor(*store, SmallAddress(1).content_key).has_value());
  EXPECT_TRUE(std::holds_alternative<Reservation>(*store->LookupOrReserve(SmallAddress(1))));
  now_ += LowerTiers::kRetryUnreadable;
  ExpectFilled(*LookupOne(*store, SmallAddress(1).key));
}

TEST_F(UnreadableEntryTest, IsTriedAgainThoughTheClockWasSetBack) {
  const auto store = StoreThatFailedToRead();
  EXPECT_FALSE(LookupOne(*store, SmallAddress(1).key).has_value());
  now_ -= absl::Hours(24);
  const auto found = LookupOne(*store, SmallAddress(1).key);
  ASSERT_TRUE(found.has_value());
  ExpectFilled(*found);
}

TEST_F(LowerTierTest, EvictionOfWhatIsStillArrivingTakesItsReadsBack) {
  { Put(*Create(8), SmallAddress(1)); }
  auto store = Create(1);
  disk_->HoldReads(true);
  LookupOne(*store, SmallAddress(1).key);  // nobody keeps the handle
  EXPECT_EQ(disk_->waiting_reads(), 2);
  ASSERT_TRUE(store->Insert(SmallAddress(2), FilledKv(SmallAddress(2)), {}).ok());
  EXPECT_EQ(disk_->waiting_reads(), 0);
  const auto again = LookupOne(*store, SmallAddress(1).key);
  ASSERT_TRUE(again.has_value());
  disk_->DeliverAll();
  ExpectFilled(*again);
}

// What has not arrived, or never will, when the store goes.
TEST_F(LowerTierTest, TheStoreMayGoWhileEntriesArrive) {
  { Put(*Create(8), SmallAddress(1)); }
  {
    auto store = Create(8);
    disk_->read_fault = [](const ChunkKey&, int32_t) { return absl::UnavailableError("cable"); };
    EXPECT_TRUE(LookupOne(*store, SmallAddress(1).key)->lost());
  }
  disk_->read_fault = nullptr;
  {
    auto store = Create(8);
    disk_->HoldReads(true);
    EXPECT_TRUE(LookupOne(*store, SmallAddress(1).key).has_value());
    EXPECT_EQ(disk_->waiting_reads(), 2);
  }
  EXPECT_EQ(disk_->waiting_reads(), 0);
  EXPECT_EQ(disk_->calls_without_tier, 0);
}

TEST_F(LowerTierTest, WithoutRoomInHostMemoryItIsAMiss) {
  { Put(*Create(8), SmallAddress(1)); }
  auto store = Create(1);
  const auto held = store->Insert(SmallAddress(2), FilledKv(SmallAddress(2)), {});
  EXPECT_FALSE(LookupOne(*store, SmallAddress(1).key).has_value());
  EXPECT_TRUE(disk_->Contains(SmallAddress(1).key));
}

TEST_F(LowerTierTest, ErasedMeansErasedEverywhere) {
  auto store = Create(1);
  for (int32_t token = 0; token < 3; ++token) Put(*store, SmallAddress(token));
  EXPECT_TRUE(*store->Erase("", SmallAddress(0).key));  // only below
  EXPECT_TRUE(*store->Erase("", SmallAddress(2).key));  // in both
  EXPECT_FALSE(*store->Erase("", SmallAddress(2).key));
  EXPECT_FALSE(*store->Erase("other", SmallAddress(1).key));
  EXPECT_EQ(disk_->entries(), 1);
  EXPECT_EQ(store->Stats().erased, 2);

  Put(*store, SmallAddress(6, 8, {0}, "tenant"));
  EXPECT_EQ(store->Clear("").erased, 1);
  EXPECT_EQ(store->Clear(kAllNamespaces).erased, 1);
  EXPECT_EQ(disk_->entries(), 0);
  EXPECT_EQ(store->Stats().entries, 0);
}

TEST_F(LowerTierTest, ATierThatErasesNothingGetsOneLineInTheLogAndNotOneForEveryChunk) {
  auto store = Create(4);
  for (int32_t token = 0; token < 4; ++token) Put(*store, SmallAddress(token));
  disk_->erase_fault = [](const ChunkKey&) { return absl::UnavailableError("out of reach"); };
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  const ChunkCatalog::Cleared cleared = store->Clear("");
  spdlog::set_default_logger(before);
  EXPECT_EQ(cleared.erased, 0);
  EXPECT_EQ(cleared.failed, 4);
  EXPECT_EQ(cleared.failed_keys.size(), 4);
  EXPECT_EQ(cleared.failure, absl::UnavailableError("disk: out of reach"));
  EXPECT_EQ(store->Stats().erased, 0);
  EXPECT_THAT(log.str(), HasSubstr("could not be deleted everywhere"));
  EXPECT_THAT(log.str(), HasSubstr("out of reach"));
  EXPECT_EQ(log.str().find("deleted"), log.str().rfind("deleted"));
}

// What is on its way to the lower tier when it is erased does not come back.
TEST_F(LowerTierTest, ErasingTakesQueuedWritesBack) {
  absl::Mutex gate;
  std::atomic<int> writing{0};
  disk_->write_fault = [&](const ChunkKey&) {
    ++writing;
    absl::MutexLock wait(&gate);
    return absl::OkStatus();
  };
  auto store = Create(8);
  {
    gate.Lock();  // the first write waits, the others queue behind it
    for (int32_t token = 0; token < 3; ++token) {
      ASSERT_TRUE(store->Insert(SmallAddress(token), FilledKv(SmallAddress(token)), {}).ok());
    }
    while (writing == 0) std::this_thread::yield();
    EXPECT_TRUE(*store->Erase("", SmallAddress(2).key));  // queued
    EXPECT_EQ(store->Stats().queued_writes, 2);
    EXPECT_EQ(store->WaitUntilDurable(SmallAddress(1).key, absl::Now()).code(),
              absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(store->FlushWrites(absl::Now()).code(), absl::StatusCode::kDeadlineExceeded);
    gate.Unlock();
  }
  EXPECT_TRUE(*store->Erase("", SmallAddress(0).key));  // perhaps being written
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_EQ(disk_->entries(), 1);
  EXPECT_TRUE(disk_->Contains(SmallAddress(1).key));
}

TEST_F(LowerTierTest, WritesThatFailOrFindNoPlaceAreReportedAndCostNothingElse) {
  disk_->write_fault = [](const ChunkKey&) { return absl::ResourceExhaustedError("disk full"); };
  auto store = Create(8, /*max_queued_write_bytes=*/kChunkBytes);
  ASSERT_TRUE(store->Insert(SmallAddress(1), FilledKv(SmallAddress(1)), {}).ok());
  const absl::Status failed = store->WaitUntilDurable(SmallAddress(1).key, absl::InfiniteFuture());
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(failed.message(), HasSubstr("disk full"));
  const ChunkAddress large = SmallAddress(2, 40);
  ASSERT_TRUE(store->Insert(large, FilledKv(large), {}).ok());
  EXPECT_THAT(store->WaitUntilDurable(large.key, absl::InfiniteFuture()).message(),
              HasSubstr("was not written"));
  const StoreStats stats = store->Stats();
  EXPECT_EQ(stats.failed_writes, 1);
  EXPECT_EQ(stats.dropped_writes, 1);
  EXPECT_EQ(stats.queued_write_bytes, 0);
  ExpectFilled(*LookupOne(*store, large.key));

  // Whoever wants it stored later, writes it again.
  disk_->write_fault = nullptr;
  ASSERT_TRUE(std::holds_alternative<ChunkHandle>(*store->LookupOrReserve(SmallAddress(1))));
  EXPECT_TRUE(store->WaitUntilDurable(SmallAddress(1).key, absl::InfiniteFuture()).ok());
  ASSERT_TRUE(*store->Erase("", SmallAddress(1).key));
  ASSERT_TRUE(store->Insert(SmallAddress(1), FilledKv(SmallAddress(1)), {}).ok());
  EXPECT_TRUE(store->WaitUntilDurable(SmallAddress(1).key, absl::InfiniteFuture()).ok());

  auto host_only = *ChunkStore::Create({.byte_budget = kChunkBytes});
  EXPECT_EQ(host_only->WaitUntilDurable(SmallAddress(1).key, absl::InfiniteFuture()).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(LowerTierTest, PinsReachBothTiers) {
  auto store = Create(2);
  Put(*store, SmallAddress(1));
  Put(*store, SmallAddress(2));
  Put(*store, SmallAddress(3));  // SmallAddress(1) is only below now
  ASSERT_TRUE(store->Pin("", SmallAddress(1).key).ok());
  ASSERT_TRUE(store->Pin("", SmallAddress(3).key).ok());
  EXPECT_TRUE(disk_->IsPinned(SmallAddress(1).key));
  EXPECT_TRUE(disk_->IsPinned(SmallAddress(3).key));
  EXPECT_EQ(store->Stats().pinned_entries, 1);
  ASSERT_TRUE(store->Unpin("", SmallAddress(3).key).ok());
  EXPECT_FALSE(disk_->IsPinned(SmallAddress(3).key));
  EXPECT_EQ(store->Pin("", SmallAddress(9).key).code(), absl::StatusCode::kNotFound);
}

TEST_F(LowerTierTest, AListHoldsEveryEntryOnceInOrderWhereverItIs) {
  auto store = Create(3);
  std::set<std::pair<std::string, ChunkKey>> expected;
  for (int32_t token = 0; token < 10; ++token) {
    const ChunkAddress address = SmallAddress(token, 8, {0}, token % 3 == 0 ? "a" : "b");
    Put(*store, address);
    expected.emplace(address.tenant_namespace, address.key);
  }
  for (const int32_t page_size : {1, 2, 3, 7, 10, 100}) {
    std::vector<std::pair<std::string, ChunkKey>> listed;
    std::string token;
    int pages = 0;
    do {
      const auto page = store->List(kAllNamespaces, token, page_size);
      ASSERT_TRUE(page.ok()) << page.status();
      EXPECT_LE(static_cast<int32_t>(page->chunks.size()), page_size);
      for (const ChunkInfo& info : page->chunks) listed.emplace_back(info.tenant_namespace, info.key);
      token = page->next_page_token;
      ++pages;
    } while (!token.empty());
    EXPECT_EQ(listed, std::vector(expected.begin(), expected.end()));
    EXPECT_EQ(pages, (10 + page_size - 1) / page_size);
  }
  EXPECT_EQ(store->List("a", "", 100)->chunks.size(), 4u);
}

// The same entries give the same choice, whichever tier they are in.
TEST_F(LowerTierTest, AnyAnchorPrefersAlikeInBothTiers) {
  std::vector<std::vector<int32_t>> anchors = {{}, {1}, {2}, {3}};
  std::optional<ChunkKey> chosen;
  do {
    auto store = Create(2);  // two of the four stay in host memory
    for (const std::vector<int32_t>& anchor : anchors) Put(*store, SmallAddress(7, 8, anchor));
    const auto handle = LookupOneAnyAnchor(*store, SmallAddress(7).content_key);
    ASSERT_TRUE(handle.has_value());
    if (!chosen.has_value()) chosen = handle->key();
    EXPECT_EQ(handle->key(), *chosen);
    ExpectFilled(*handle);
    store->Clear(kAllNamespaces);
  } while (std::next_permutation(anchors.begin(), anchors.end()));
}

TEST_F(LowerTierTest, ManyThreadsWithReadsAndWritesThatFail) {
  std::atomic<uint32_t> calls{0};
  disk_->read_fault = [&](const ChunkKey&, int32_t) {
    return calls++ % 7 == 0 ? absl::DataLossError("damaged") : absl::OkStatus();
  };
  disk_->write_fault = [&](const ChunkKey&) {
    return calls++ % 5 == 0 ? absl::UnavailableError("no disk") : absl::OkStatus();
  };
  auto store = Create(4);
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int step = 0; step < 500; ++step) {
        const ChunkAddress address = SmallAddress(static_cast<int32_t>(random() % 12));
        switch (random() % 8) {
          case 0:
            store->Erase(kAllNamespaces, address.key).IgnoreError();
            break;
          case 1:
            store->Pin(kAllNamespaces, address.key).IgnoreError();
            break;
          case 2:
            store->Unpin(kAllNamespaces, address.key).IgnoreError();
            break;
          case 3:
            EXPECT_TRUE(store->List(kAllNamespaces, "", 5).ok());
            break;
          case 4:
            store->WaitUntilDurable(address.key, absl::Now()).IgnoreError();
            break;
          default: {
            absl::StatusOr<ReserveResult> result = store->LookupOrReserve(address);
            if (!result.ok()) break;
            if (auto* reservation = std::get_if<Reservation>(&*result)) {
              reservation->Commit(FilledKv(address), {.compute_cost_seconds = 1}).IgnoreError();
            } else if (auto* handle = std::get_if<ChunkHandle>(&*result)) {
              for (int32_t layer = 0; layer < 2; ++layer) {
                const auto kv = handle->AcquireLayer(layer);
                if (!kv.ok()) {
                  EXPECT_EQ(kv.status().code(), absl::StatusCode::kDataLoss);
                  break;
                }
                EXPECT_EQ(*static_cast<const float*>(kv->k.data), Element(address.key, layer, false, 0));
              }
            }
          }
        }
        const StoreStats stats = store->Stats();
        EXPECT_LE(stats.bytes, stats.byte_budget);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(store->Stats().failed_entries, 0);
  EXPECT_GT(store->Stats().failed_writes, 0);
}

}  // namespace
}  // namespace kvblend::store
