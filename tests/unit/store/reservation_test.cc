// Computing a missing chunk once, however many ask for it.
#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

class ReservationTest : public ::testing::Test {
 protected:
  Reservation Reserve(const ChunkAddress& address) {
    return std::get<Reservation>(*store_->LookupOrReserve(address));
  }
  bool IsBeingComputed(const ChunkAddress& address) {
    return std::holds_alternative<BeingComputed>(*store_->LookupOrReserve(address));
  }

  std::unique_ptr<ChunkStore> store_ = *ChunkStore::Create({.byte_budget = 850000});
  const ChunkAddress address_ = SmallAddress(1);
};

TEST_F(ReservationTest, WhoAsksMeanwhileIsToldAndFindsTheEntryAfterwards) {
  Reservation reservation = Reserve(address_);
  EXPECT_TRUE(IsBeingComputed(address_));
  EXPECT_TRUE(IsBeingComputed(address_));
  EXPECT_FALSE(LookupOne(*store_, address_.key).has_value());
  EXPECT_EQ(store_->Stats().reservations, 1);

  ASSERT_TRUE(reservation.Commit(FilledKv(address_), {}).ok());
  ExpectFilled(std::get<ChunkHandle>(*store_->LookupOrReserve(address_)));
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.reservations, 0);
  EXPECT_EQ(stats.reservations_made, 1);
  EXPECT_EQ(stats.waits, 2);
  EXPECT_EQ(stats.reserve_hits, 1);
  EXPECT_EQ(stats.reserve_lookups, 4);
}

TEST_F(ReservationTest, GivingUpLeavesTheDutyToTheNextWhoAsks) {
  std::optional<Reservation> reservation = Reserve(address_);
  EXPECT_TRUE(IsBeingComputed(address_));
  reservation.reset();
  EXPECT_EQ(store_->Stats().reservations, 0);
  // A commit that fails gives up as well.
  Reservation next = Reserve(address_);
  EXPECT_EQ(next.Commit(FilledKv(SmallAddress(2, 3)), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(next.Commit(FilledKv(address_), {}).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(Reserve(address_).Commit(FilledKv(address_), {}).ok());
  EXPECT_EQ(store_->Stats().reservations, 0);
}

TEST_F(ReservationTest, AMovedReservationIsOneDuty) {
  std::optional<Reservation> reservation = Reserve(address_);
  Reservation moved = *std::move(reservation);
  reservation.reset();
  EXPECT_TRUE(IsBeingComputed(address_));
  moved = Reserve(SmallAddress(2));  // gives up the first
  EXPECT_FALSE(IsBeingComputed(address_));
  EXPECT_TRUE(IsBeingComputed(SmallAddress(2)));
}

TEST_F(ReservationTest, AnInsertFromElsewhereServesEverybodyAndTheHolderLater) {
  Reservation reservation = Reserve(address_);
  const ChunkHandle inserted = *store_->Insert(address_, FilledKv(address_), {});
  EXPECT_TRUE(std::holds_alternative<ChunkHandle>(*store_->LookupOrReserve(address_)));
  auto committed = reservation.Commit(FilledKv(address_), {});
  ASSERT_TRUE(committed.ok());
  EXPECT_EQ(committed->AcquireLayer(0)->k.data, inserted.AcquireLayer(0)->k.data);
  EXPECT_EQ(store_->Stats().insertions, 1);
  EXPECT_EQ(store_->Stats().reservations, 0);
}

TEST_F(ReservationTest, WhatCanNeverFitIsRefusedBeforeItIsComputed) {
  const ChunkAddress large = SmallAddress(1, 1000);
  const absl::Status refused = store_->LookupOrReserve(large).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << "trying again would not help";
  EXPECT_THAT(refused.message(), ::testing::HasSubstr("(--chunk-store-bytes)"));
  EXPECT_EQ(store_->CheckFits(large.format, large.num_tokens), refused);
  EXPECT_TRUE(store_->CheckFits(address_.format, address_.num_tokens).ok());
  EXPECT_EQ(store_->Stats().rejected_insertions, 1);
  ChunkAddress bad = address_;
  bad.num_tokens = -1;
  EXPECT_EQ(store_->LookupOrReserve(bad).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Stats().reservations, 0);
}

// --- threads

TEST_F(ReservationTest, OfManyThreadsExactlyOneComputes) {
  for (int round = 0; round < 50; ++round) {
    const ChunkAddress address = SmallAddress(100 + round);
    std::atomic<int> num_computed = 0;
    std::vector<std::thread> threads;
    absl::Notification start;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&] {
        start.WaitForNotification();
        auto result = store_->LookupOrReserve(address);
        ASSERT_TRUE(result.ok());
        if (auto* reservation = std::get_if<Reservation>(&*result)) {
          ++num_computed;
          auto handle = reservation->Commit(FilledKv(address), {});
          ASSERT_TRUE(handle.ok());
          ExpectFilled(*handle);
        } else if (auto* handle = std::get_if<ChunkHandle>(&*result)) {
          ExpectFilled(*handle);
        }
      });
    }
    start.Notify();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(num_computed, 1);
    ExpectFilled(std::get<ChunkHandle>(*store_->LookupOrReserve(address)));
  }
}

// Everything at once, for the sanitizers, and for the invariants that hold at every moment.
TEST_F(ReservationTest, ManyThreadsDoingEverything) {
  store_ = *ChunkStore::Create({.byte_budget = 170000});
  std::vector<ChunkAddress> addresses;
  for (int i = 0; i < 24; ++i)
    addresses.push_back(SmallAddress(i % 8, 8 + i % 8, {i % 3}, i % 2 == 0 ? "a" : "b"));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(t));
      std::optional<ChunkHandle> held;
      std::optional<Reservation> reserved;  // one at a time, over some steps
      ChunkAddress reserved_address;
      for (int step = 0; step < 1500; ++step) {
        const ChunkAddress& address = addresses[random() % addresses.size()];
        switch (random() % 8) {
          case 0:
            held = LookupOne(*store_, address.key);
            break;
          case 1:
            held = LookupOneAnyAnchor(*store_, address.content_key);
            break;
          case 2:
            store_->Erase(address.tenant_namespace, address.key).IgnoreError();
            break;
          case 3:
            store_->Pin(address.tenant_namespace, address.key).IgnoreError();
            store_->Unpin(address.tenant_namespace, address.key).IgnoreError();
            break;
          case 4: {
            const StoreStats stats = store_->Stats();
            ASSERT_LE(stats.bytes, stats.byte_budget);
            ASSERT_LE(stats.pinned_bytes, stats.pinned_byte_limit);
            ASSERT_EQ(stats.lookups, stats.hits + stats.misses);
            ASSERT_EQ(stats.reserve_lookups, stats.reserve_hits + stats.reservations_made + stats.waits);
            ASSERT_TRUE(store_->List(address.tenant_namespace, "", 5).ok());
            break;
          }
          case 5:
            if (!reserved.has_value()) break;
            if (random() % 4 != 0) {
              auto handle = reserved->Commit(FilledKv(reserved_address),
                                             {.compute_cost_seconds = 1.0 * (random() % 3)});
              if (handle.ok()) held = *std::move(handle);
            }
            reserved.reset();  // without a commit it gives up
            break;
          default: {
            auto result = store_->LookupOrReserve(address);
            ASSERT_TRUE(result.ok());
            if (auto* reservation = std::get_if<Reservation>(&*result)) {
              reserved = std::move(*reservation);
              reserved_address = address;
            } else if (auto* handle = std::get_if<ChunkHandle>(&*result)) {
              held = std::move(*handle);
            }
          }
        }
        if (held.has_value()) ExpectFilled(*held);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.reservations, 0);
  EXPECT_EQ(stats.bytes, stats.idle_bytes);
  EXPECT_EQ(stats.erased_held_bytes, 0);
  EXPECT_GT(stats.evictions, 0);
  EXPECT_GT(stats.waits, 0);
}

}  // namespace
}  // namespace kvblend::store
