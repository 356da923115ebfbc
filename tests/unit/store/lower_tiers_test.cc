// ChunkStore with two tiers below host memory.
#include "engine/store/lower_tiers.h"

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using test_support::MakeMemoryLowerTier;
using test_support::MemoryDisk;

constexpr Tier kRemote = Tier::kNone;  // any that is not durable

class LowerTiersTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChunkStore> Create(int64_t num_chunks) {
    std::vector<std::unique_ptr<LowerTier>> tiers;
    tiers.push_back(MakeMemoryLowerTier(disk_, Tier::kDisk));
    tiers.push_back(MakeMemoryLowerTier(remote_, kRemote));
    return *ChunkStore::Create({.byte_budget = num_chunks * kChunkBytes}, std::move(tiers));
  }
  static void Put(ChunkStore& store, const ChunkAddress& address, InsertOptions options = {}) {
    ASSERT_TRUE(store.Insert(address, FilledKv(address), options).ok());
    ASSERT_TRUE(store.FlushWrites(absl::InfiniteFuture()).ok());
  }
  /// Puts it into the store, and takes it out of memory again.
  void PutBelow(ChunkStore& store, const ChunkAddress& address) {
    Put(store, address);
    Put(store, SmallAddress(1000, 8, {9}));
    Put(store, SmallAddress(1001, 8, {9}));
    ASSERT_EQ(store.Stat(kAllNamespaces, address.key)->tier, Tier::kDisk);
  }
  /// Looks chunk_ up, reads all of it, and lets it go.
  void Use(ChunkStore& store, Tier from) {
    remote_->HoldReads(true);  // so that the handle tells where its layers come from
    const auto handle = LookupOne(store, chunk_.key);
    ASSERT_TRUE(handle.has_value());
    EXPECT_EQ(handle->tier(), from);
    remote_->DeliverAll();
    ExpectFilled(*handle);
  }

  const std::shared_ptr<MemoryDisk> disk_ = std::make_shared<MemoryDisk>();
  const std::shared_ptr<MemoryDisk> remote_ = std::make_shared<MemoryDisk>();
  const ChunkAddress chunk_ = SmallAddress(1);
};

TEST_F(LowerTiersTest, WritesToAllAndReadsFromTheFirst) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  EXPECT_TRUE(disk_->Contains(chunk_.key));
  EXPECT_TRUE(remote_->Contains(chunk_.key));
  disk_->HoldReads(true);
  const auto handle = LookupOne(*store, chunk_.key);
  EXPECT_EQ(handle->tier(), Tier::kDisk);
  EXPECT_EQ(disk_->waiting_reads(), 2);
  EXPECT_EQ(remote_->waiting_reads(), 0);
  disk_->DeliverAll();
}

TEST_F(LowerTiersTest, ASlowTierHoldsUpNoOther) {
  absl::Notification go_on;
  remote_->write_fault = [&](const ChunkKey&) {
    go_on.WaitForNotification();
    return absl::UnavailableError("slow, and then gone");
  };
  auto store = Create(2);
  ASSERT_TRUE(store->Insert(chunk_, FilledKv(chunk_), {}).ok());
  EXPECT_TRUE(store->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
  EXPECT_FALSE(remote_->Contains(chunk_.key));
  go_on.Notify();
}

TEST_F(LowerTiersTest, WhatOneTierCannotReadAnotherMay) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  disk_->read_fault = [](const ChunkKey&, int32_t) { return absl::UnavailableError("EIO"); };
  disk_->HoldReads(true);
  {
    const auto handle = LookupOne(*store, chunk_.key);
    ASSERT_EQ(handle->tier(), Tier::kDisk);
    disk_->DeliverAll();
    EXPECT_EQ(handle->AcquireLayer(0, absl::InfiniteFuture()).status().code(), absl::StatusCode::kDataLoss);
  }
  Use(*store, kRemote);
}

TEST_F(LowerTiersTest, WhatIsAskedForAgainMovesUp) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  disk_->Evict(chunk_.key, /*frequency=*/1);
  ASSERT_NO_FATAL_FAILURE(Use(*store, kRemote));
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(disk_->Contains(chunk_.key)) << "one request does not make it worth a write";
  ASSERT_NO_FATAL_FAILURE(Use(*store, Tier::kHostMemory));
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_TRUE(disk_->Contains(chunk_.key));
  EXPECT_EQ(disk_->FrequencyOf(chunk_.key), 2);
}

TEST_F(LowerTiersTest, WhatMemoryGivesUpThoughItWasUsedIsWrittenAgain) {
  auto store = Create(2);
  Put(*store, chunk_);
  ASSERT_NO_FATAL_FAILURE(Use(*store, Tier::kHostMemory));
  disk_->Evict(chunk_.key, 1);
  remote_->Evict(chunk_.key, 1);
  const ChunkAddress once = SmallAddress(2);
  Put(*store, once);
  disk_->Evict(once.key, 1);
  for (int32_t token = 10; token < 14; ++token) {  // on purpose: no probation for these
    Put(*store, SmallAddress(token), {.compute_cost_seconds = 1, .on_purpose = true});
  }
  EXPECT_TRUE(disk_->Contains(chunk_.key));
  EXPECT_TRUE(remote_->Contains(chunk_.key));
  EXPECT_FALSE(disk_->Contains(once.key));
}

TEST_F(LowerTiersTest, WhatATierGivesUpGoesToTheNext) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  remote_->Evict(chunk_.key, 1);
  ASSERT_FALSE(remote_->Contains(chunk_.key));
  disk_->Evict(chunk_.key, /*frequency=*/7);
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  ASSERT_TRUE(remote_->Contains(chunk_.key));
  EXPECT_EQ(remote_->FrequencyOf(chunk_.key), 7);
  Use(*store, kRemote);
}

TEST_F(LowerTiersTest, AnEntryThatCannotBeReadIsNotDemoted) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  remote_->Evict(chunk_.key, 1);
  disk_->read_fault = [](const ChunkKey&, int32_t layer) {
    return layer == 1 ? absl::DataLossError("flipped") : absl::OkStatus();
  };
  disk_->Evict(chunk_.key, 7);
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(remote_->Contains(chunk_.key));
}

TEST_F(LowerTiersTest, DemotionsAreBounded) {
  auto store = Create(2);
  constexpr int32_t kEntries = LowerTiers::kMaxDemotions + 3;
  for (int32_t token = 0; token < kEntries; ++token) Put(*store, SmallAddress(token));
  disk_->HoldReads(true);
  for (int32_t token = 0; token < kEntries; ++token) {
    remote_->Evict(SmallAddress(token).key, 1);
    disk_->Evict(SmallAddress(token).key, 2);
  }
  disk_->DeliverAll();
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_EQ(remote_->entries(), LowerTiers::kMaxDemotions);
}

TEST_F(LowerTiersTest, DemotionsThatWaitEndWithTheStore) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  remote_->Evict(chunk_.key, 1);
  disk_->HoldReads(true);
  disk_->Evict(chunk_.key, 2);
  store.reset();
  EXPECT_FALSE(remote_->Contains(chunk_.key));
}

TEST_F(LowerTiersTest, ErasingErasesEverywhere) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  EXPECT_TRUE(*store->Erase(kAllNamespaces, chunk_.key));
  EXPECT_FALSE(disk_->Contains(chunk_.key));
  EXPECT_FALSE(remote_->Contains(chunk_.key));
  EXPECT_FALSE(LookupOne(*store, chunk_.key).has_value());
}

TEST_F(LowerTiersTest, WhatOneTierDidNotEraseIsToldAndGoneFromTheOthers) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  disk_->erase_fault = [](const ChunkKey&) { return absl::UnavailableError("no"); };
  EXPECT_EQ(store->Erase(kAllNamespaces, chunk_.key).status(), absl::UnavailableError("disk: no"));
  EXPECT_FALSE(remote_->Contains(chunk_.key));
  disk_->erase_fault = nullptr;
  EXPECT_TRUE(*store->Erase(kAllNamespaces, chunk_.key));
}

// What was opened can be read after it is gone.
TEST_F(LowerTiersTest, ALookupUnderWayDoesNotUndoAnErasure) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  disk_->after_open = [&] {
    disk_->after_open = nullptr;
    EXPECT_TRUE(*store->Erase(kAllNamespaces, chunk_.key));
  };
  EXPECT_FALSE(LookupOne(*store, chunk_.key).has_value());
  EXPECT_FALSE(store->Stat(kAllNamespaces, chunk_.key).ok());
  Put(*store, chunk_);  // erased is not forbidden
  EXPECT_TRUE(LookupOne(*store, chunk_.key).has_value());
}

TEST_F(LowerTiersTest, ADemotionUnderWayDoesNotUndoAnErasure) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  remote_->Evict(chunk_.key, 1);
  disk_->HoldReads(true);
  disk_->Evict(chunk_.key, /*frequency=*/2);
  store->Erase(kAllNamespaces, chunk_.key).IgnoreError();
  disk_->DeliverAll();
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_FALSE(remote_->Contains(chunk_.key));
}

TEST_F(LowerTiersTest, AFullQueueOfReadsIsNoFaultOfTheEntry) {
  auto store = Create(2);
  PutBelow(*store, chunk_);
  disk_->read_fault = [](const ChunkKey&, int32_t) { return absl::ResourceExhaustedError("queue"); };
  {
    const auto handle = LookupOne(*store, chunk_.key);
    EXPECT_FALSE(handle->AcquireLayer(0).ok());
  }
  disk_->read_fault = nullptr;
  disk_->HoldReads(true);
  const auto handle = LookupOne(*store, chunk_.key);
  EXPECT_EQ(handle->tier(), Tier::kDisk);
  disk_->DeliverAll();
  ExpectFilled(*handle);
}

TEST_F(LowerTiersTest, SomethingElseUnderTheKeyIsAMiss) {
  ChunkAddress forged = SmallAddress(2, /*num_tokens=*/3);
  ASSERT_NE(forged.num_tokens, chunk_.num_tokens);
  forged.key = chunk_.key;
  ASSERT_TRUE(MakeMemoryLowerTier(disk_)->Put(forged, *FilledKv(forged), {}).ok());
  auto store = Create(2);
  auto reserved = store->LookupOrReserve(chunk_);
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  auto* reservation = std::get_if<Reservation>(&*reserved);
  ASSERT_NE(reservation, nullptr);
  ASSERT_TRUE(reservation->Commit(FilledKv(chunk_), {}).ok());
  ExpectFilled(*LookupOne(*store, chunk_.key));
}

TEST_F(LowerTiersTest, PinningBehindPinsInMemoryAndThenOnDisk) {
  absl::Notification go_on;
  auto store = Create(2);
  Put(*store, chunk_);
  disk_->write_fault = [&](const ChunkKey&) {
    go_on.WaitForNotification();
    return absl::OkStatus();
  };
  ASSERT_TRUE(store->Insert(SmallAddress(2), FilledKv(SmallAddress(2)), {}).ok());
  ASSERT_TRUE(store->PinBehind(kAllNamespaces, chunk_.key).ok());  // although the disk is busy
  EXPECT_TRUE(store->Stat(kAllNamespaces, chunk_.key)->pinned);
  EXPECT_FALSE(disk_->IsPinned(chunk_.key));
  go_on.Notify();
  EXPECT_TRUE(store->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
  EXPECT_EQ(store->PinBehind(kAllNamespaces, SmallAddress(3).key).code(), absl::StatusCode::kNotFound);
}

// A chunk is left over from a prompt, on its way to the disk and out of memory again, when somebody asks for
// it to be stored and pinned.
class PinnedMeanwhileTest : public LowerTiersTest {
 protected:
  void SetUp() override {
    disk_->write_fault = [this](const ChunkKey& key) {
      if (key == chunk_.key && !begun_.HasBeenNotified()) begun_.Notify();
      go_on_.WaitForNotification();
      return outcome_;
    };
    store_ = *ChunkStore::Create({.byte_budget = 2 * kChunkBytes}, Only(MakeMemoryLowerTier(disk_)));
  }
  void TearDown() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
  }
  void Insert(const ChunkAddress& address, const InsertOptions& options = {}) {
    ASSERT_TRUE(store_->Insert(address, FilledKv(address), options).ok());
  }
  void PushOut() {
    for (const int32_t token : {1000, 1001}) ASSERT_NO_FATAL_FAILURE(Insert(SmallAddress(token, 8, {9})));
    ASSERT_FALSE(disk_->Contains(chunk_.key));
  }
  Reservation Reserve() {
    auto result = *store_->LookupOrReserve(chunk_);
    EXPECT_TRUE(std::holds_alternative<Reservation>(result));
    return std::get<Reservation>(std::move(result));
  }
  void CommitPinned(Reservation reservation) {
    ASSERT_TRUE(reservation.Commit(FilledKv(chunk_), {.pinned = true, .on_purpose = true}).ok());
  }
  void ExpectPinnedOnDisk() {
    EXPECT_TRUE(store_->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
    EXPECT_TRUE(store_->Stat(kAllNamespaces, chunk_.key)->pinned);
    EXPECT_TRUE(disk_->IsPinned(chunk_.key));
  }

  absl::Notification begun_;  // to write the chunk
  absl::Notification go_on_;
  absl::Status outcome_;  // of the writes, which wait for go_on_
  std::unique_ptr<ChunkStore> store_;
};

TEST_F(PinnedMeanwhileTest, WhileItsWriteWaits) {
  ASSERT_NO_FATAL_FAILURE(Insert(SmallAddress(2)));  // is being written
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_));           // waits behind it
  ASSERT_NO_FATAL_FAILURE(PushOut());
  ASSERT_NO_FATAL_FAILURE(CommitPinned(Reserve()));
  go_on_.Notify();
  ExpectPinnedOnDisk();
}

TEST_F(PinnedMeanwhileTest, WhileItIsBeingWritten) {
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_));
  begun_.WaitForNotification();
  ASSERT_NO_FATAL_FAILURE(PushOut());
  ASSERT_NO_FATAL_FAILURE(CommitPinned(Reserve()));
  go_on_.Notify();
  ExpectPinnedOnDisk();
}

TEST_F(PinnedMeanwhileTest, AfterItWasWrittenWhileItWasComputed) {
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_));
  ASSERT_NO_FATAL_FAILURE(PushOut());
  Reservation reservation = Reserve();
  go_on_.Notify();
  ASSERT_TRUE(store_->FlushWrites(absl::InfiniteFuture()).ok());
  ASSERT_TRUE(disk_->Contains(chunk_.key));
  ASSERT_NO_FATAL_FAILURE(CommitPinned(std::move(reservation)));
  ExpectPinnedOnDisk();
}

TEST_F(PinnedMeanwhileTest, WhileItIsStillInMemory) {
  ASSERT_NO_FATAL_FAILURE(Insert(SmallAddress(2)));
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_));
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_, {.pinned = true}));
  go_on_.Notify();
  ExpectPinnedOnDisk();
  EXPECT_EQ(store_->Stats().written_entries, 2) << "each once";
}

// A pin without an entry fails too, but that is not what the caller needs to hear.
TEST_F(PinnedMeanwhileTest, AWriteThatFailsSaysWhyThoughAPinWaitedForIt) {
  outcome_ = absl::ResourceExhaustedError("disk full");
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_));
  begun_.WaitForNotification();
  ASSERT_NO_FATAL_FAILURE(Insert(chunk_, {.pinned = true}));
  go_on_.Notify();
  EXPECT_EQ(store_->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()), outcome_);
}

// Another server has computed a chunk that somebody asks this one to store.
class StoredElsewhereTest : public LowerTiersTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeMemoryLowerTier(remote_, kRemote)->Put(chunk_, *FilledKv(chunk_), {}).ok());
    store_ = Create(2);
  }
  ChunkHandle Reserve() {
    auto result = *store_->LookupOrReserve(chunk_);
    EXPECT_TRUE(std::holds_alternative<ChunkHandle>(result));
    return std::get<ChunkHandle>(std::move(result));
  }
  absl::Status WaitUntilDurable() { return store_->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()); }

  std::unique_ptr<ChunkStore> store_;
};

TEST_F(StoredElsewhereTest, ComesToTheDiskWhenItHasArrived) {
  ExpectFilled(Reserve());
  EXPECT_TRUE(WaitUntilDurable().ok());
  EXPECT_TRUE(disk_->Contains(chunk_.key));
  EXPECT_FALSE(disk_->IsPinned(chunk_.key));
}

TEST_F(StoredElsewhereTest, ComesToTheDiskThoughAPromptStillUsesIt) {
  remote_->HoldReads(true);
  const auto prompt = LookupOne(*store_, chunk_.key);
  {
    const ChunkHandle handle = Reserve();
    remote_->DeliverAll();
    ExpectFilled(handle);
  }
  EXPECT_TRUE(WaitUntilDurable().ok());
}

TEST_F(StoredElsewhereTest, IsNotWrittenBeforeItHasArrived) {
  remote_->HoldReads(true);
  Reserve();  // and gives up
  EXPECT_EQ(WaitUntilDurable().code(), absl::StatusCode::kNotFound);
  remote_->DeliverAll();
  ExpectFilled(Reserve());
  EXPECT_TRUE(WaitUntilDurable().ok());
}

TEST_F(StoredElsewhereTest, IsPinnedOnTheDiskToo) {
  {
    const ChunkHandle handle = Reserve();
    ExpectFilled(handle);
    ASSERT_TRUE(store_->PinBehind(kAllNamespaces, chunk_.key).ok());
  }
  EXPECT_TRUE(WaitUntilDurable().ok());
  EXPECT_TRUE(store_->Stat(kAllNamespaces, chunk_.key)->pinned);
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
}

// It was nowhere when its computing began.
TEST_F(StoredElsewhereTest, IsWrittenFromWhatWasComputedWhileItArrives) {
  remote_->HoldReads(true);
  const auto prompt = LookupOne(*store_, chunk_.key);
  ASSERT_TRUE(store_->Insert(chunk_, FilledKv(chunk_), {.pinned = true}).ok());
  EXPECT_TRUE(WaitUntilDurable().ok());
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
  remote_->DeliverAll();
  ExpectFilled(*prompt);
}

// Durable is what is on the disk, whatever became of its pin.
TEST_F(LowerTiersTest, APinThatTheDiskRefusesLeavesTheEntryDurable) {
  disk_->pin_fault = [](const ChunkKey&) { return absl::ResourceExhaustedError("half is pinned"); };
  auto store = Create(2);
  Put(*store, chunk_);
  ASSERT_TRUE(store->PinBehind(kAllNamespaces, chunk_.key).ok());
  EXPECT_TRUE(store->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
  EXPECT_FALSE(disk_->IsPinned(chunk_.key));
  EXPECT_TRUE(store->WaitUntilDurable(chunk_.key, absl::InfinitePast()).ok());
}

TEST_F(LowerTiersTest, WhatTheDiskCannotPinOrUnpinStaysAsItIsInMemoryToo) {
  auto store = Create(2);
  Put(*store, chunk_);
  const auto pinned = [&] { return store->Stat(kAllNamespaces, chunk_.key)->pinned; };
  disk_->pin_fault = [](const ChunkKey&) { return absl::UnavailableError("read-only"); };
  EXPECT_EQ(store->Pin(kAllNamespaces, chunk_.key).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(pinned());
  disk_->pin_fault = nullptr;
  EXPECT_TRUE(store->Pin(kAllNamespaces, chunk_.key).ok());
  EXPECT_TRUE(pinned());
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());  // which sets the pin on the disk once more
  disk_->pin_fault = [](const ChunkKey&) { return absl::UnavailableError("read-only"); };
  EXPECT_EQ(store->Unpin(kAllNamespaces, chunk_.key).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(pinned());
}

TEST_F(LowerTiersTest, OfManyChunksTheTierBelowIsAskedForThoseThatAreNotAboveIt) {
  auto store = Create(2);
  PutBelow(*store, chunk_);  // with two others, which stay in memory
  const ChunkKey nowhere = SmallAddress(77).key;
  remote_->stat_calls = 0;
  const auto infos = store->StatAll(kAllNamespaces, {nowhere, chunk_.key, SmallAddress(1001, 8, {9}).key});
  EXPECT_FALSE(infos[0].has_value());
  EXPECT_EQ(infos[1]->key, chunk_.key);
  EXPECT_EQ(infos[2]->tier, Tier::kHostMemory);
  EXPECT_EQ(remote_->stat_calls, 1) << "for what is nowhere";
}

}  // namespace
}  // namespace kvblend::store
