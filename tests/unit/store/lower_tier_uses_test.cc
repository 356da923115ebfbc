// What a lower tier whose entries go by time hears of those that are used from host memory.
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "engine/store/chunk_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LowerTierUsesTest : public ::testing::Test {
 protected:
  static constexpr absl::Duration kLifetime = absl::Hours(24);
  const absl::Duration interval_ = kLifetime / LowerTiers::kUsesPerLifetime;

  LowerTierUsesTest() { remote_->lifetime = kLifetime; }

  /// A store above a disk, whose entries stay, and a remote tier, whose entries go by time.
  std::unique_ptr<ChunkStore> Create() {
    std::vector<std::unique_ptr<LowerTier>> tiers;
    tiers.push_back(test_support::MakeMemoryLowerTier(disk_, Tier::kDisk));
    tiers.push_back(test_support::MakeMemoryLowerTier(remote_, Tier::kRedis));
    return *ChunkStore::Create({.byte_budget = 8 * kChunkBytes, .now = [this] { return now_; }},
                               std::move(tiers));
  }
  static void Put(ChunkStore& store, const ChunkAddress& address) {
    ASSERT_TRUE(store.Insert(address, FilledKv(address), {}).ok());
    ASSERT_TRUE(store.FlushWrites(absl::InfiniteFuture()).ok());
  }
  /// How many uses the remote tier has heard of once `num_lookups` more have found the chunk.
  size_t UsesAfter(ChunkStore& store, int32_t num_lookups) {
    for (int32_t i = 0; i < num_lookups; ++i) EXPECT_TRUE(LookupOne(store, chunk_.key).has_value());
    EXPECT_TRUE(store.FlushWrites(absl::InfiniteFuture()).ok());
    return remote_->uses().size();
  }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  const std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
  const std::shared_ptr<test_support::MemoryDisk> remote_ = std::make_shared<test_support::MemoryDisk>();
  const ChunkAddress chunk_ = SmallAddress(1);
};

TEST_F(LowerTierUsesTest, AreToldOnceInAWhileHoweverManyThereAre) {
  const auto store = Create();
  Put(*store, chunk_);
  EXPECT_THAT(remote_->uses(), IsEmpty()) << "it was written just now";
  EXPECT_EQ(UsesAfter(*store, 10), 1);
  now_ += interval_ - absl::Seconds(1);
  EXPECT_EQ(UsesAfter(*store, 10), 1);
  now_ += absl::Seconds(1);
  EXPECT_EQ(UsesAfter(*store, 10), 2);
  now_ += 2 * kLifetime;
  EXPECT_EQ(UsesAfter(*store, 0), 2) << "nobody used it";
  EXPECT_EQ(UsesAfter(*store, 10), 3);
  EXPECT_THAT(remote_->uses(), ElementsAre(chunk_.key, chunk_.key, chunk_.key));
  EXPECT_THAT(disk_->uses(), IsEmpty()) << "what it has stays";
}

TEST_F(LowerTierUsesTest, AreToldThoughTheClockWasSetBack) {
  const auto store = Create();
  Put(*store, chunk_);
  EXPECT_EQ(UsesAfter(*store, 1), 1);
  now_ -= absl::Hours(100);
  EXPECT_EQ(UsesAfter(*store, 2), 2);
}

TEST_F(LowerTierUsesTest, AreWhateverAPromptIsGiven) {
  const auto store = Create();
  Put(*store, chunk_);
  store->Prefetch({chunk_.key});
  EXPECT_EQ(UsesAfter(*store, 0), 0) << "nobody has used it yet";
  EXPECT_TRUE(LookupOneAnyAnchor(*store, chunk_.content_key).has_value());
  EXPECT_EQ(UsesAfter(*store, 0), 1);
  now_ += interval_;
  EXPECT_TRUE(std::holds_alternative<ChunkHandle>(*store->LookupOrReserve(chunk_)));
  EXPECT_EQ(UsesAfter(*store, 0), 2);
}

// Lookups do not wait for the tier. What waits to be written need not be prolonged.
TEST_F(LowerTierUsesTest, WaitInTheBackgroundAndGoWithWhatIsErased) {
  absl::Mutex gate;
  std::atomic<bool> writing{false};
  const auto store = Create();
  Put(*store, chunk_);
  Put(*store, SmallAddress(2));
  remote_->write_fault = [&](const ChunkKey&) {
    writing = true;
    absl::MutexLock wait(&gate);
    return absl::OkStatus();
  };
  {
    gate.Lock();
    ASSERT_TRUE(store->Insert(SmallAddress(3), FilledKv(SmallAddress(3)), {}).ok());
    while (!writing) std::this_thread::yield();
    EXPECT_TRUE(LookupOne(*store, chunk_.key).has_value());
    EXPECT_TRUE(LookupOne(*store, SmallAddress(2).key).has_value());
    EXPECT_TRUE(*store->Erase(kAllNamespaces, chunk_.key));
    ASSERT_TRUE(store->Insert(SmallAddress(4), FilledKv(SmallAddress(4)), {}).ok());
    for (const int32_t queued : {3, 4}) {
      EXPECT_TRUE(LookupOne(*store, SmallAddress(queued).key).has_value());
    }
    EXPECT_THAT(remote_->uses(), IsEmpty());
    gate.Unlock();
  }
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  EXPECT_THAT(remote_->uses(), ElementsAre(SmallAddress(2).key));
  EXPECT_TRUE(remote_->Contains(SmallAddress(4).key));
}

}  // namespace
}  // namespace kvblend::store
