// Pins of chunks that memory and the disk have, or are to have: both end up alike.
#include <atomic>
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
  /// Half of it may be pinned.
  std::unique_ptr<ChunkStore> Open() {
    return *ChunkStore::Create({.byte_budget = 4 * kChunkBytes, .pin_wait = absl::ZeroDuration()},
                               Only(test_support::MakeMemoryLowerTier(disk_)));
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

  /// chunk_, whose write waits for go_on_, and waiting_ behind it.
  void InsertBehindASlowWrite(const InsertOptions& options) {
    disk_->write_fault = Hold();
    ASSERT_TRUE(Insert(chunk_, options).ok());
    held_.WaitForNotification();
    ASSERT_TRUE(Insert(waiting_, options).ok());
  }

  absl::Notification held_, go_on_;
  const std::shared_ptr<test_support::MemoryDisk> disk_ = std::make_shared<test_support::MemoryDisk>();
  std::unique_ptr<ChunkStore> store_ = Open();
  const ChunkAddress chunk_ = SmallAddress(1), waiting_ = SmallAddress(2);
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

// The disk is so slow that nobody waits for it.
TEST_F(LowerTierPinsTest, TheDiskFollowsWhatIsPinnedWhileTheChunkWaitsToBeWritten) {
  InsertBehindASlowWrite({});
  for (const ChunkAddress* address : {&chunk_, &waiting_}) {
    EXPECT_TRUE(store_->Pin(kAllNamespaces, address->key).ok());
  }
  go_on_.Notify();
  ASSERT_TRUE(store_->FlushWrites(absl::InfiniteFuture()).ok());
  for (const ChunkAddress* address : {&chunk_, &waiting_}) {
    EXPECT_TRUE(store_->Stat(kAllNamespaces, address->key)->pinned);
    EXPECT_TRUE(disk_->IsPinned(address->key));
  }
}

TEST_F(LowerTierPinsTest, TheDiskFollowsWhatIsUnpinnedWhileTheChunkWaitsToBeWritten) {
  InsertBehindASlowWrite({.pinned = true});
  for (const ChunkAddress* address : {&chunk_, &waiting_}) {
    EXPECT_TRUE(store_->Unpin(kAllNamespaces, address->key).ok());
  }
  go_on_.Notify();
  ASSERT_TRUE(store_->FlushWrites(absl::InfiniteFuture()).ok());
  for (const ChunkAddress* address : {&chunk_, &waiting_}) {
    EXPECT_FALSE(store_->Stat(kAllNamespaces, address->key)->pinned);
    EXPECT_TRUE(disk_->Contains(address->key));
    EXPECT_FALSE(disk_->IsPinned(address->key));
  }
  EXPECT_EQ(store_->Stats().failed_writes, 0);
}

// Others take the room for pins while the disk works.
TEST_F(LowerTierPinsTest, APinKeepsItsRoomInMemoryUntilTheDiskHasPinned) {
  const ChunkAddress second = SmallAddress(2), third = SmallAddress(3);
  Put(chunk_);
  absl::Status pinned_second, pinned_third;
  disk_->pin_fault = [&](const ChunkKey& key) {
    if (key != chunk_.key) return absl::OkStatus();
    pinned_second = Insert(second, {.pinned = true});
    pinned_third = Insert(third, {.pinned = true});
    return absl::UnavailableError("read-only");
  };
  EXPECT_EQ(store_->Pin(kAllNamespaces, chunk_.key).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(pinned_second.ok()) << pinned_second;
  EXPECT_EQ(pinned_third.code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(store_->FlushWrites(absl::InfiniteFuture()).ok());
  disk_->pin_fault = nullptr;
  EXPECT_TRUE(store_->Pin(kAllNamespaces, chunk_.key).ok()) << "the room is free again";
  EXPECT_TRUE(store_->Stat(kAllNamespaces, chunk_.key)->pinned);
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
}

class PinnedWhileItIsLookedUpTest : public LowerTierPinsTest {
 protected:
  /// Looks chunk_ up, which is not in memory, and calls `meanwhile` when it has been opened.
  void LookUp(const std::function<void()>& meanwhile) {
    disk_->after_open = meanwhile;
    EXPECT_TRUE(LookupOne(*store_, chunk_.key).has_value());
    disk_->after_open = nullptr;
  }
  void Restart() {
    store_.reset();
    store_ = Open();
  }
  void ExpectPinned(bool pinned) {
    EXPECT_EQ(store_->Stat(kAllNamespaces, chunk_.key)->tier, Tier::kHostMemory);
    EXPECT_EQ(store_->Stat(kAllNamespaces, chunk_.key)->pinned, pinned);
    EXPECT_EQ(disk_->IsPinned(chunk_.key), pinned);
  }
};

TEST_F(PinnedWhileItIsLookedUpTest, ItIsInMemoryAsItWasSetLast) {
  Put(chunk_);
  for (const bool pinned : {true, false}) {
    Restart();
    LookUp([&] {
      const absl::Status set = pinned ? store_->Pin(kAllNamespaces, chunk_.key)  //
                                      : store_->Unpin(kAllNamespaces, chunk_.key);
      EXPECT_TRUE(set.ok()) << set;
    });
    ExpectPinned(pinned);
    Restart();
    LookUp([] {});
    ExpectPinned(pinned);
  }
}

// A slow write has just pinned it on the disk, and is to be undone, when a lookup opens it.
TEST_F(PinnedWhileItIsLookedUpTest, ItIsInMemoryAsTheDiskIsToHaveIt) {
  absl::Notification undoing, undo;
  std::atomic<int> num_pins{0};
  disk_->pin_fault = [&, hold = Hold()](const ChunkKey& key) {
    switch (++num_pins) {
      case 1:
        return hold(key);
      case 3:
        undoing.Notify();
        undo.WaitForNotification();
        [[fallthrough]];
      default:
        return absl::OkStatus();
    }
  };
  ASSERT_TRUE(Insert(chunk_, {.pinned = true}).ok());
  held_.WaitForNotification();
  EXPECT_TRUE(store_->Unpin(kAllNamespaces, chunk_.key).ok());  // the second to set it
  for (int32_t token = 2; token < 6; ++token) ASSERT_TRUE(Insert(SmallAddress(token)).ok());
  ASSERT_EQ(store_->Stat(kAllNamespaces, chunk_.key)->tier, Tier::kDisk);
  go_on_.Notify();
  undoing.WaitForNotification();
  EXPECT_TRUE(disk_->IsPinned(chunk_.key));
  LookUp([&] {
    undo.Notify();
    EXPECT_TRUE(store_->WaitUntilDurable(chunk_.key, absl::InfiniteFuture()).ok());
  });
  ExpectPinned(false);
}

}  // namespace
}  // namespace kvblend::store
