// The chunk store over a disk that fails in every way at once, and over one that is slow: never a wrong byte,
// never a failed call, and nobody waits who has not asked for what is slow.
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using Operation = FaultyFileSystem::Operation;

class FailingDiskTest : public DiskTierTest {
 protected:
  static constexpr int32_t kNumChunks = 24;

  /// A few chunks in memory, more on disk.
  std::unique_ptr<ChunkStore> CreateStore() {
    auto store = ChunkStore::Create({.byte_budget = 6 * kChunkBytes, .now = [this] { return now_; }},
                                    Only(OpenTier(/*num_entries=*/12)));
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }

  /// Reads what a lookup gave. A layer is right, or the entry says that it is lost.
  void Use(const ChunkHandle& handle, const ChunkAddress& address) {
    const auto expected = FilledKv(address);
    for (int32_t layer = 0; layer < address.format.num_layers; ++layer) {
      const absl::StatusOr<LayerKv> views = handle.AcquireLayer(layer);
      if (!views.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(views.status())) << views.status();
        EXPECT_TRUE(handle.lost());
        ++num_lost_;
        return;
      }
      const LayerKv right = expected->Layer(layer);
      const auto bytes =
          static_cast<size_t>(address.num_tokens * address.format.RowElements()) * sizeof(float);
      EXPECT_EQ(std::memcmp(views->k.data, right.k.data, bytes), 0) << "wrong K, layer " << layer;
      EXPECT_EQ(std::memcmp(views->v.data, right.v.data, bytes), 0) << "wrong V, layer " << layer;
    }
    ++num_read_;
  }

  void DamageAFile(std::mt19937_64& random) {
    std::vector<std::string> entries;
    for (const std::string& file : memory_.AllFiles()) {
      if (file.rfind("/var/chunks/entries/", 0) == 0 && file.ends_with(".kvb1")) entries.push_back(file);
    }
    if (entries.empty()) return;
    memory_.ChangeContents(entries[random() % entries.size()], [&](std::vector<std::byte>& bytes) {
      if (bytes.empty() || random() % 3 == 0) {
        bytes.resize(random() % 6 * 4096);
      } else {
        bytes[random() % bytes.size()] ^= std::byte{1} << (random() % 8);
      }
    });
  }

  int64_t num_read_ = 0;
  int64_t num_lost_ = 0;
};

TEST_F(FailingDiskTest, WhateverFailsAnswersAreRightAndCallsSucceed) {
  const unsigned seed = std::random_device{}();
  std::cout << "seed " << seed << std::endl;
  std::mt19937_64 random(seed);
  std::atomic<uint64_t> fault_seed = random();
  const auto faults = [&](int64_t, Operation operation, const std::string&) -> absl::Status {
    uint64_t x = fault_seed += 0x9E3779B97F4A7C15;  // any mixing of bits does
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9;
    x ^= x >> 27;
    if (x % 12 != 0) return absl::OkStatus();
    const bool writes = operation == Operation::kCreate || operation == Operation::kWrite ||
                        operation == Operation::kSync || operation == Operation::kRename ||
                        operation == Operation::kMakeFolder || operation == Operation::kSyncFolder;
    if (writes && x % 24 == 0) return absl::ResourceExhaustedError("no space left");
    return absl::InternalError("input/output error");
  };
  auto store = CreateStore();
  for (int step = 0; step < 4000 && !HasFailure(); ++step) {
    now_ += absl::Seconds(1);
    const ChunkAddress address = SmallAddress(static_cast<int32_t>(random() % kNumChunks));
    switch (random() % 16) {
      case 0:
        faulty_.SetFault(faults);
        break;
      case 1:
        faulty_.Heal();
        break;
      case 2:
        faulty_.SetMaxTransfer(random() % 2 == 0 ? INT64_MAX : static_cast<int64_t>(1 + random() % 5000));
        break;
      case 3:
        DamageAFile(random);
        break;
      case 4:
        store->Erase(kAllNamespaces, address.key).IgnoreError();
        break;
      case 5:
        if (random() % 8 == 0) {  // a restart; a folder that can't be listed would be an error of its start
          store.reset();
          faulty_.Heal();
          store = CreateStore();
        }
        break;
      case 6:
        store->FlushWrites(absl::InfiniteFuture()).IgnoreError();
        break;
      default: {
        absl::StatusOr<ReserveResult> result = store->LookupOrReserve(address);
        ASSERT_TRUE(result.ok()) << result.status();
        if (auto* reservation = std::get_if<Reservation>(&*result)) {
          const auto stored = reservation->Commit(FilledKv(address), {.compute_cost_seconds = 0.1});
          ASSERT_TRUE(stored.ok()) << stored.status();
          Use(*stored, address);
        } else {
          ASSERT_TRUE(std::holds_alternative<ChunkHandle>(*result));
          Use(std::get<ChunkHandle>(*result), address);
        }
      }
    }
  }
  EXPECT_GT(num_read_, 1000);
  EXPECT_GT(num_lost_, 0) << "nothing ever failed";
  faulty_.Heal();
  for (int32_t i = 0; i < kNumChunks; ++i) {
    const auto handle = LookupOne(*store, SmallAddress(i).key);
    if (handle.has_value()) Use(*handle, SmallAddress(i));
  }
}

/// Holds up one kind of operation until it is told to go on.
class SlowDiskTest : public DiskTierTest {
 protected:
  void HoldUp(Operation operation, const std::string& path_part) {
    faulty_.SetFault([=, this](int64_t, Operation attempted, const std::string& path) {
      if (attempted == operation && path.find(path_part) != std::string::npos && !slow_.HasBeenNotified()) {
        slow_.Notify();
        go_on_.WaitForNotification();
      }
      return absl::OkStatus();
    });
  }

  absl::Notification slow_;
  absl::Notification go_on_;
};

TEST_F(SlowDiskTest, AWriteThatTakesLongHoldsUpNobody) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, SmallAddress(1)).ok());
  HoldUp(Operation::kSync, "/tmp/");
  absl::Status written;
  std::thread writer([&] { written = Put(*tier, SmallAddress(2)); });
  slow_.WaitForNotification();
  EXPECT_FALSE(tier->Contains(SmallAddress(2).key));
  EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(1)).ok());
  EXPECT_TRUE(tier->Stat(kAllNamespaces, SmallAddress(1).key).has_value());
  EXPECT_TRUE(Put(*tier, SmallAddress(3)).ok());
  EXPECT_TRUE(tier->SetPinned(kAllNamespaces, SmallAddress(3).key, true).ok());
  EXPECT_TRUE(*tier->Erase(kAllNamespaces, SmallAddress(3).key));
  EXPECT_EQ(tier->Stats().entries, 1);
  go_on_.Notify();
  writer.join();
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(2)).ok());
}

TEST_F(SlowDiskTest, AReadThatTakesLongHoldsUpOnlyWhoAskedForIt) {
  DiskTier::Options options = TierOptions();
  options.reads.num_threads = 2;
  auto store = *ChunkStore::Create({.byte_budget = 1 << 20, .now = [this] { return now_; }},
                                   Only(*DiskTier::Open(options)));
  for (const int32_t token : {1, 2}) {
    ASSERT_TRUE(store->Insert(SmallAddress(token), FilledKv(SmallAddress(token)), {}).ok());
  }
  ASSERT_TRUE(store->FlushWrites(absl::InfiniteFuture()).ok());
  store.reset();  // gives the folder back
  store = *ChunkStore::Create({.byte_budget = 1 << 20, .now = [this] { return now_; }},
                              Only(*DiskTier::Open(options)));
  const auto first = LookupOne(*store, SmallAddress(1).key);
  ASSERT_TRUE(first.has_value());
  ExpectFilled(*first);
  const std::string hex = SmallAddress(2).key.ToHex();
  // The first read is the header's, by the lookup itself; the others are the layers', in any order, by nobody
  // who is waited for.
  std::atomic<int> reads = 0;
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    if (operation != Operation::kRead || path.find(hex) == std::string::npos) return absl::OkStatus();
    const int read = ++reads;
    if (read == 2) slow_.Notify();
    if (read >= 2) go_on_.WaitForNotification();
    return absl::OkStatus();
  });
  const auto second = LookupOne(*store, SmallAddress(2).key);
  ASSERT_TRUE(second.has_value());
  slow_.WaitForNotification();
  EXPECT_EQ(second->AcquireLayer(0, absl::InfinitePast()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(LookupOne(*store, SmallAddress(1).key).has_value());
  EXPECT_TRUE(store->Insert(SmallAddress(3), FilledKv(SmallAddress(3)), {}).ok());
  ASSERT_TRUE(store->WaitUntilDurable(SmallAddress(3).key, absl::InfiniteFuture()).ok());
  go_on_.Notify();
  ExpectFilled(*second);
}

}  // namespace
}  // namespace kvblend::store
