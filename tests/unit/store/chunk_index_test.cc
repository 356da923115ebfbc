// The index by itself: no lock, no memory for KV, no lower tiers. ChunkStoreModelTest drives it at random.
#include "engine/store/chunk_index.h"

#include <memory>

#include "engine/store/format/chunk_address.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store::internal {
namespace {

using ::testing::HasSubstr;

class ChunkIndexTest : public ::testing::Test {
 protected:
  /// Null when it did not fit.
  Entry* Add(const ChunkAddress& address, int64_t bytes, double cost = 0, bool pinned = false) {
    auto fresh = std::make_unique<Entry>();
    fresh->address = address;
    fresh->bytes = bytes;
    fresh->compute_cost_seconds = cost;
    fresh->pinned = pinned;
    Entry* const entry = fresh.get();
    removed_.clear();
    added_ = index_.Add(fresh, removed_);
    EXPECT_EQ(added_.ok(), fresh == nullptr);
    return added_.ok() ? entry : nullptr;
  }
  StoreStats Stats() const {
    StoreStats stats;
    index_.Report(stats);
    return stats;
  }

  ChunkIndex index_{{.byte_budget = 100, .pinned_byte_limit = 50}};
  ChunkIndex::Removed removed_;
  absl::Status added_;
};

TEST_F(ChunkIndexTest, EvictsTheCheapestThatIsIdleAndHandsItOver) {
  Add(SmallAddress(1), 40, /*cost=*/3);
  Entry* const cheap = Add(SmallAddress(2), 40, /*cost=*/1);
  ASSERT_NE(Add(SmallAddress(3), 40, /*cost=*/2), nullptr);
  ASSERT_EQ(removed_.size(), 1u);
  EXPECT_EQ(removed_[0].get(), cheap);
  EXPECT_EQ(index_.Find(SmallAddress(2).key), nullptr);
  EXPECT_EQ(Stats().bytes, 80);
  EXPECT_EQ(Stats().idle_bytes, 80);
  EXPECT_EQ(Stats().evicted_bytes, 40);
}

TEST_F(ChunkIndexTest, ARefusalChangesNothing) {
  Entry* const held = Add(SmallAddress(1), 30);
  index_.AddHandle(held);
  ASSERT_NE(Add(SmallAddress(2), 40, 0, /*pinned=*/true), nullptr);
  ASSERT_NE(Add(SmallAddress(3), 30), nullptr);
  EXPECT_EQ(Add(SmallAddress(4), 31), nullptr);
  EXPECT_THAT(added_.message(), HasSubstr("31 bytes needed; of the budget of 100 bytes 70 are pinned (40)"));
  EXPECT_EQ(Add(SmallAddress(4), 11, 0, /*pinned=*/true), nullptr);
  EXPECT_THAT(added_.message(), HasSubstr("40 of at most 50 bytes are pinned"));
  EXPECT_EQ(Stats().entries, 3);
  EXPECT_EQ(Stats().evictions, 0);
  index_.DropHandle(held, removed_);
  EXPECT_EQ(Stats().idle_bytes, 60);
}

TEST_F(ChunkIndexTest, AnErasedEntryGoesWithItsLastHandle) {
  Entry* const entry = Add(SmallAddress(1), 40, 0, /*pinned=*/true);
  index_.AddHandle(entry);
  index_.AddHandle(entry);
  index_.Erase(entry, removed_);
  EXPECT_EQ(index_.Find(SmallAddress(1).key), nullptr);
  EXPECT_EQ(index_.FindAnyAnchor(SmallAddress(1).content_key), nullptr);
  EXPECT_TRUE(index_.List(kAllNamespaces, std::nullopt, 10).empty());
  EXPECT_EQ(Stats().pinned_bytes, 0);
  EXPECT_EQ(Stats().erased_held_bytes, 40);
  index_.DropHandle(entry, removed_);
  EXPECT_TRUE(removed_.empty());
  index_.DropHandle(entry, removed_);
  EXPECT_EQ(removed_.size(), 1u);
  EXPECT_EQ(Stats().bytes, 0);
  EXPECT_EQ(Stats().erased_held_bytes, 0);
}

TEST_F(ChunkIndexTest, FrequencyCountsWhoAskedAndWhatWasProven) {
  Entry* const entry = Add(SmallAddress(1), 40);
  EXPECT_EQ(index_.FrequencyOf(*entry), 1);
  entry->proven = true;
  EXPECT_EQ(index_.FrequencyOf(*entry), 2);
  for (int i = 0; i < 5; ++i) index_.RecordAsked(SmallAddress(1).key);
  EXPECT_EQ(index_.FrequencyOf(*entry), 5);
}

}  // namespace
}  // namespace kvblend::store::internal
