// Pins of chunks that memory and the disk have, or are to have: both end up alike.
#include <functional>
#include <memory>
#include <variant>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/support/memory_lower_tier.h"
#include "tests/unit/store/test_chunks.h"

namespace kvblend::store {
namespace {

class LowerTierPinsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
  }
  absl::Status Insert(const ChunkAddress& address, const InsertOptions& options = {}) {
    return store_->Insert(address, FilledKv(address), options).status();
  }
  void Put(const ChunkAddress& address, const InsertOptions& options = {}) {
    ASSERT_TRUE(Insert(address, options).ok());
    ASSERT_TRUE(store_->FlushWrites(absl::InfiniteFuture()).ok());
  }
  /// What to write or pin waits for go_on_.
  std::function<absl::Status(const ChunkKey&)> Hold() {
    return [this](const ChunkKey&) {
      if (!held_.HasBeenNotified()) held_.Notify();
      go_on_.WaitForNotification();
      return absl::OkStatus();
    };
  }

  absl::Notification held_, go_on_;
  const std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
  std::unique_ptr<ChunkStore> store_ =
      *ChunkStore::Create({.byte_budget = 4 * kChunkBytes},
                          Only(test_support::MakeMemoryLowerTier(disk_)));  // half may be pinned
  const ChunkAddress chunk_ = SmallAddress(1);
};

TEST_F(LowerTierPinsTest, AChunkIsWrittenThoughAPinOfItWaitsThatFoundItOnTheDisk) {
  Put(chunk_);
  disk_->write_fault = Hold();
  ASSERT_TRUE(Insert(SmallAddress(2)).ok());
  held_.WaitForNotification();
  ASSERT_TRUE(store_->PinBehind(kAllNamespaces, chunk_.key).ok());
  disk_->Evict(chunk_.key, 1);  // to make room for what is being written
  EXPECT_TRUE(
      std::holds_alternative<ChunkHandle>(*store_->LookupOrReserve(chunk_)));  // a client puts it again
  EXPECT_EQ(store_->Stats().queued_write_bytes, 2 * FilledKv(chunk_)->size_bytes());
  go_on_.Notify();
  EXPECT_TRUE(store_->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
  EXPECT_EQ(store_->Stats().queued_write_bytes, 0);
  EXPECT_EQ(store_->Stats().queued_writes, 0);
}

TEST_F(LowerTierPinsTest, AChunkIsWrittenThoughAPinOfItIsUnderWay) {
  Put(chunk_);
  disk_->pin_fault = Hold();
  ASSERT_TRUE(store_->PinBehind(kAllNamespaces, chunk_.key).ok());
  held_.WaitForNotification();
  disk_->Evict(chunk_.key, 1);
  EXPECT_TRUE(std::holds_alternative<ChunkHandle>(*store_->LookupOrReserve(chunk_)));
  go_on_.Notify();
  EXPECT_TRUE(store_->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
}

}  // namespace
}  // namespace kvblend::store
