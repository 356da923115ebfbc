// Several that store the same chunk at the same time.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/unit/blend/blend_fixture.h"

namespace kvblend {
namespace {

class ChunkStoringTest : public BlendFixture {
 protected:
  std::unique_ptr<ChunkStoring> Begin(const Tokens& chunk, const StoreEntryOptions& options = {}) {
    return runner_->BeginStoring("", anchor_, chunk, options);
  }
  /// Steps until it is done.
  static int Finish(ChunkStoring& storing) {
    for (int steps = 1;; ++steps) {
      const absl::StatusOr<bool> done = storing.Step(KeepRunning);
      EXPECT_TRUE(done.ok()) << done.status();
      if (!done.ok() || *done) return steps;
    }
  }

  const Tokens anchor_ = RandomTokens(20), chunk_ = RandomTokens(40), other_ = RandomTokens(30);
};

TEST_P(ChunkStoringTest, WhoeverHasATurnWorksOnItAndItIsComputedOnce) {
  const auto first = Begin(chunk_), second = Begin(chunk_, {.label = "", .pinned = true});
  ASSERT_FALSE(*first->Step(KeepRunning));
  ASSERT_FALSE(*second->Step(KeepRunning));
  // All of the work in the second one's turns.
  Finish(*second);
  EXPECT_EQ(Finish(*first), 1);
  const StoreStats stats = chunk_store_->Stats();
  EXPECT_EQ(stats.insertions, 2) << "the anchor and the chunk";
  EXPECT_EQ(stats.duplicate_insertions, 0);
  EXPECT_EQ(stats.reservations_made, 2);
  EXPECT_EQ(stats.pinned_entries, 1);
  EXPECT_FALSE(first->TakeStored().already_present);
  EXPECT_TRUE(second->TakeStored().already_present);
}

TEST_P(ChunkStoringTest, ChunksShareTheirAnchorsComputation) {
  const auto first = Begin(chunk_), second = Begin(other_);
  while (chunk_store_->Stats().insertions < 3) {
    for (const auto& storing : {first.get(), second.get()}) {
      const absl::StatusOr<bool> done = storing->Step(KeepRunning);
      ASSERT_TRUE(done.ok()) << done.status();
    }
  }
  Finish(*first);
  Finish(*second);
  EXPECT_EQ(chunk_store_->Stats().duplicate_insertions, 0);
  EXPECT_EQ(chunk_store_->Stats().reservations_made, 3);
}

TEST_P(ChunkStoringTest, WhenOneIsGivenUpTheOtherDoesItAll) {
  auto first = Begin(chunk_);
  const auto second = Begin(chunk_);
  for (int i = 0; i < 3; ++i) {
    ASSERT_FALSE(*first->Step(KeepRunning));
    ASSERT_FALSE(*second->Step(KeepRunning));
  }
  // Who is cancelled stops, and spoils nothing.
  const absl::Status cancelled = absl::CancelledError("enough");
  EXPECT_EQ(second->Step([&] { return cancelled; }).status(), cancelled);
  first.reset();
  Finish(*second);
  const StoredChunk stored = second->TakeStored();
  EXPECT_FALSE(stored.already_present);
  EXPECT_EQ(stored.num_tokens, 40);
  EXPECT_EQ(chunk_store_->Stats().duplicate_insertions, 0);
  EXPECT_EQ(chunk_store_->Stats().reservations, 0);
}

TEST_P(ChunkStoringTest, WhatFailsInAnothersLastTurnHasFailed) {
  runner_.reset();
  chunk_store_ = *store::ChunkStore::Create({.byte_budget = int64_t{256} << 20, .pinned_byte_limit = 1});
  runner_ = std::make_unique<PromptRunner>(*runtime_, *chunk_store_);
  const auto owner = runner_->BeginStoring("", {}, chunk_, {.label = "", .pinned = true});
  const auto second = runner_->BeginStoring("", {}, chunk_, {});
  ASSERT_FALSE(*owner->Step(KeepRunning));
  ASSERT_FALSE(*second->Step(KeepRunning));
  // The second one's time is over right behind the step in which what it works on turns out not to fit.
  while (chunk_store_->Stats().reservations_made == 1) {
    int asked = 0;
    const absl::StatusOr<bool> done = second->Step([&] {
      const bool is_late = ++asked > 2;  // once by itself, once by the owner
      return is_late ? absl::DeadlineExceededError("late") : absl::OkStatus();
    });
    ASSERT_TRUE(done.ok()) << done.status();
  }
  EXPECT_EQ(owner->Step(KeepRunning).status().code(), absl::StatusCode::kResourceExhausted);
  Finish(*second);
  EXPECT_FALSE(second->TakeStored().already_present);
}

/// Has memory for so many more pieces.
class LittleMemory final : public store::HostMemory {
 public:
  explicit LittleMemory(int pieces) : pieces_(pieces) {}
  void* Allocate(int64_t bytes) override { return --pieces_ < 0 ? nullptr : store::Heap().Allocate(bytes); }
  void Free(void* data, int64_t bytes) override { store::Heap().Free(data, bytes); }

 private:
  int pieces_;
};

TEST_P(ChunkStoringTest, WithoutMemoryForTheChunkBehindTheAnchorItHasFailed) {
  const auto memory = std::exchange(runtime_->host_memory, std::make_unique<LittleMemory>(1));
  auto owner = Begin(chunk_);
  const auto second = Begin(chunk_);
  ASSERT_FALSE(*owner->Step(KeepRunning));
  ASSERT_FALSE(*second->Step(KeepRunning));
  // In the second one's turns the anchor is computed, and then memory is refused.
  while (chunk_store_->Stats().insertions == 0) {
    ASSERT_TRUE(second->Step(KeepRunning).ok());
  }
  EXPECT_FALSE(owner->is_waiting());  // the scheduler asks before it gives it a turn
  EXPECT_EQ(owner->Step(KeepRunning).status().code(), absl::StatusCode::kResourceExhausted);
}

INSTANTIATE_TEST_SUITE_P(Backends, ChunkStoringTest, testing::Values("reference", "cpu"));

}  // namespace
}  // namespace kvblend
