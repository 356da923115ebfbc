// Computing a missing chunk once, however many ask for it.
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

class ReservationTest : public ::testing::Test {
 protected:
  Reservation Reserve(const ChunkAddress& address) {
    return std::get<Reservation>(*store_->LookupOrReserve(address));
  }
  Pending Queue(const ChunkAddress& address) { return std::get<Pending>(*store_->LookupOrReserve(address)); }
  static bool IsPending(Pending& pending) {
    return pending.Wait(absl::InfinitePast()).status().code() == absl::StatusCode::kDeadlineExceeded;
  }

  std::unique_ptr<ChunkStore> store_ = *ChunkStore::Create({.byte_budget = 850000});
  const ChunkAddress address_ = SmallAddress(1);
};

TEST_F(ReservationTest, EveryoneWhoWaitsGetsTheEntry) {
  Reservation reservation = Reserve(address_);
  EXPECT_EQ(reservation.address().key, address_.key);
  Pending first = Queue(address_);
  Pending second = Queue(address_);
  EXPECT_TRUE(IsPending(first));
  EXPECT_EQ(store_->Stats().reservations, 1);

  ASSERT_TRUE(reservation.Commit(FilledKv(address_), {}).ok());
  EXPECT_EQ(store_->Stats().reservations, 0);
  for (Pending* pending : {&first, &second}) {
    auto outcome = pending->Wait(absl::InfiniteFuture());
    ASSERT_TRUE(outcome.ok());
    ExpectFilled(std::get<ChunkHandle>(*outcome));
    EXPECT_EQ(pending->Wait(absl::InfinitePast()).status().code(), absl::StatusCode::kFailedPrecondition);
  }
  const StoreStats stats = store_->Stats();
  EXPECT_EQ(stats.reservations_made, 1);
  EXPECT_EQ(stats.lookups, 0);
  EXPECT_EQ(stats.waits, 2);
  EXPECT_EQ(store_->Stat("", address_.key)->hits, 2);
}

TEST_F(ReservationTest, TheEntryIsPinnedForWaitersUntilTheyLook) {
  Reservation reservation = Reserve(address_);
  Pending pending = Queue(address_);
  ASSERT_TRUE(reservation.Commit(FilledKv(address_), {}).ok());
  EXPECT_EQ(store_->Stats().idle_bytes, 0);
  store_->Erase("", address_.key);
  EXPECT_GT(store_->Stats().erased_held_bytes, 0);
  { ExpectFilled(std::get<ChunkHandle>(*pending.Wait(absl::InfinitePast()))); }
  EXPECT_EQ(store_->Stats().bytes, 0);
}

TEST_F(ReservationTest, GivingUpHandsTheDutyToWhoWaitedLongest) {
  std::optional<Reservation> reservation = Reserve(address_);
  Pending first = Queue(address_);
  Pending second = Queue(address_);
  reservation.reset();
  EXPECT_TRUE(IsPending(second));
  auto outcome = first.Wait(absl::InfinitePast());
  ASSERT_TRUE(outcome.ok());
  auto& inherited = std::get<Reservation>(*outcome);
  // A commit that fails hands over as well.
  EXPECT_EQ(inherited.Commit(FilledKv(SmallAddress(2, 3)), {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(inherited.Commit(FilledKv(address_), {}).status().code(), absl::StatusCode::kFailedPrecondition);
  outcome = second.Wait(absl::InfinitePast());
  ASSERT_TRUE(outcome.ok());
  ASSERT_TRUE(std::get<Reservation>(*outcome).Commit(FilledKv(address_), {}).ok());
  EXPECT_EQ(store_->Stats().reservations, 0);
}

TEST_F(ReservationTest, WaitersWhoLeaveAreSkippedAndLeaveNothingBehind) {
  {
    std::optional<Reservation> reservation = Reserve(address_);
    std::optional<Pending> leaves_before = Queue(address_);
    std::optional<Pending> leaves_with_the_duty = Queue(address_);
    Pending last = Queue(address_);
    leaves_before.reset();
    reservation.reset();
    EXPECT_TRUE(IsPending(last));
    leaves_with_the_duty.reset();
    EXPECT_TRUE(std::holds_alternative<Reservation>(*last.Wait(absl::InfinitePast())));
  }
  EXPECT_EQ(store_->Stats().reservations, 0);
  EXPECT_TRUE(std::holds_alternative<Reservation>(*store_->LookupOrReserve(address_)));
}

TEST_F(ReservationTest, AnInsertFromElsewhereServesWaitersAndTheHolderLater) {
  Reservation reservation = Reserve(address_);
  Pending pending = Queue(address_);
  const ChunkHandle inserted = *store_->Insert(address_, FilledKv(address_), {});
  auto outcome = pending.Wait(absl::InfinitePast());
  ASSERT_TRUE(outcome.ok());
  EXPECT_TRUE(std::holds_alternative<ChunkHandle>(*outcome));
  EXPECT_TRUE(std::holds_alternative<ChunkHandle>(*store_->LookupOrReserve(address_)));
  auto committed = reservation.Commit(FilledKv(address_), {});
  ASSERT_TRUE(committed.ok());
  EXPECT_EQ(committed->AcquireLayer(0)->k.data, inserted.AcquireLayer(0)->k.data);
  EXPECT_EQ(store_->Stats().insertions, 1);
  EXPECT_EQ(store_->Stats().reservations, 0);
}

TEST_F(ReservationTest, WhatCanNeverFitIsRefusedBeforeItIsComputed) {
  const ChunkAddress large = SmallAddress(1, 1000);
  EXPECT_EQ(store_->LookupOrReserve(large).status().code(), absl::StatusCode::kResourceExhausted);
  ChunkAddress bad = address_;
  bad.num_tokens = -1;
  EXPECT_EQ(store_->LookupOrReserve(bad).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->Stats().reservations, 0);
}

TEST_F(ReservationTest, CallbacksComeOnceAndWithoutTheLock) {
  std::optional<Reservation> reservation = Reserve(address_);
  Pending first = Queue(address_);
  Pending second = Queue(address_);
  std::optional<Pending> gone = Queue(address_);
  std::vector<std::string> calls;
  first.NotifyWhenReady([&] { calls.push_back("replaced"); });
  first.NotifyWhenReady([&] {
    store_->Stats();  // would deadlock under the lock
    calls.push_back("first");
  });
  gone->NotifyWhenReady([&] { calls.push_back("gone"); });
  gone.reset();
  reservation.reset();
  EXPECT_THAT(calls, ::testing::ElementsAre("first"));
  auto outcome = first.Wait(absl::InfinitePast());
  ASSERT_TRUE(std::get<Reservation>(*outcome).Commit(FilledKv(address_), {}).ok());
  second.NotifyWhenReady([&] { calls.push_back("late"); });
  EXPECT_THAT(calls, ::testing::ElementsAre("first", "late"));
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
        } else if (auto* pending = std::get_if<Pending>(&*result)) {
          auto outcome = pending->Wait(absl::InfiniteFuture());
          ASSERT_TRUE(outcome.ok());
          ExpectFilled(std::get<ChunkHandle>(*outcome));
        } else {
          ExpectFilled(std::get<ChunkHandle>(*result));
        }
      });
    }
    start.Notify();
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(num_computed, 1);
  }
}

TEST_F(ReservationTest, FailingThreadsHandOverUntilOneSucceeds) {
  constexpr int kFailures = 5;
  std::atomic<int> num_attempts = 0;
  std::atomic<int> num_handles = 0;
  const auto compute = [&](Reservation reservation) {
    if (num_attempts.fetch_add(1) < kFailures) return;  // fails: the reservation goes without a commit
    ASSERT_TRUE(reservation.Commit(FilledKv(address_), {}).ok());
  };
  // All queue up before the first one fails, so that every failure has a successor.
  Reservation reservation = Reserve(address_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 12; ++t) {
    threads.emplace_back([&, pending = Queue(address_)]() mutable {
      auto outcome = pending.Wait(absl::InfiniteFuture());
      ASSERT_TRUE(outcome.ok());
      if (std::holds_alternative<Reservation>(*outcome)) {
        compute(std::get<Reservation>(*std::move(outcome)));
      } else {
        ExpectFilled(std::get<ChunkHandle>(*outcome));
        ++num_handles;
      }
    });
  }
  compute(std::move(reservation));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_attempts, kFailures + 1);
  EXPECT_EQ(num_handles, 12 - kFailures);
  EXPECT_EQ(store_->Stats().reservations, 0);
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
      for (int step = 0; step < 1500; ++step) {
        const ChunkAddress& address = addresses[random() % addresses.size()];
        switch (random() % 8) {
          case 0:
            held = store_->Lookup(address.key);
            break;
          case 1:
            held = store_->LookupAnyAnchor(address.content_key);
            break;
          case 2:
            store_->Erase(address.tenant_namespace, address.key);
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
          default: {
            auto result = store_->LookupOrReserve(address);
            ASSERT_TRUE(result.ok());
            if (auto* pending = std::get_if<Pending>(&*result)) {
              if (random() % 4 == 0) break;  // stops waiting
              auto calls = std::make_shared<std::atomic<int>>(0);
              pending->NotifyWhenReady([calls] { ++*calls; });
              auto outcome = pending->Wait(absl::InfiniteFuture());
              ASSERT_TRUE(outcome.ok());
              if (std::holds_alternative<Reservation>(*outcome)) {
                result = std::get<Reservation>(*std::move(outcome));
              } else {
                held = std::get<ChunkHandle>(*std::move(outcome));
              }
            }
            if (auto* reservation = std::get_if<Reservation>(&*result)) {
              if (random() % 4 == 0) break;  // fails
              auto handle =
                  reservation->Commit(FilledKv(address), {.compute_cost_seconds = 1.0 * (random() % 3)});
              if (handle.ok()) held = *std::move(handle);
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
}

}  // namespace
}  // namespace kvblend::store
