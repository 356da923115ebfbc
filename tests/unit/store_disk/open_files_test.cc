// How many files a disk tier keeps open for the chunks that are brought up from it.
#include <memory>
#include <optional>
#include <vector>

#include "absl/synchronization/notification.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/support/chunk_lookups.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using Operation = FaultyFileSystem::Operation;

class OpenFilesTest : public DiskTierTest {
 protected:
  static constexpr int32_t kNumChunks = 40;

  OpenFilesTest() {
    const auto tier = OpenTier();
    for (int32_t token = 0; token < kNumChunks; ++token) EXPECT_TRUE(Put(*tier, SmallAddress(token)).ok());
  }

  /// A store whose tier keeps so many files open. `tier`: set to it.
  std::unique_ptr<ChunkStore> OpenStore(int64_t max_held_files, DiskTier** tier = nullptr) {
    DiskTier::Options options = TierOptions();
    options.max_held_files = max_held_files;
    auto opened = *DiskTier::Open(options);
    if (tier != nullptr) *tier = opened.get();
    return *ChunkStore::Create({.byte_budget = 100 * kChunkBytes, .now = [this] { return now_; }},
                               Only(std::move(opened)));
  }
  static std::vector<ChunkKey> AllKeys() {
    std::vector<ChunkKey> keys;
    for (int32_t token = 0; token < kNumChunks; ++token) keys.push_back(SmallAddress(token).key);
    return keys;
  }
};

TEST_F(OpenFilesTest, NoneStaysOpenForChunksThatAreInMemory) {
  const auto store = OpenStore(/*max_held_files=*/kNumChunks);
  const auto found = store->Prefetch(AllKeys());
  for (const auto& chunk : found) ExpectFilled(*chunk);
  EXPECT_TRUE(faulty_.AwaitOpenFiles(0)) << faulty_.open_files() << " files are open";
  EXPECT_EQ(store->Stats().entries, kNumChunks);
}

TEST_F(OpenFilesTest, NorForAChunkWithoutTokens) {
  ASSERT_TRUE(Put(*OpenTier(), SmallAddress(100, 0)).ok());
  const auto store = OpenStore(/*max_held_files=*/1);
  ASSERT_TRUE(LookupOne(*store, SmallAddress(100, 0).key).has_value());
  EXPECT_EQ(faulty_.open_files(), 0);
}

TEST_F(OpenFilesTest, NorForAChunkThatCannotBeRead) {
  const auto store = OpenStore(/*max_held_files=*/1);
  PromptReads reads(store->NewPrompt());
  const auto chunk = LookupOne(*store, SmallAddress(0).key, &reads);
  ASSERT_TRUE(chunk.has_value());
  EXPECT_EQ(faulty_.open_files(), 1);
  faulty_.FailAll(Operation::kRead, absl::InternalError("broken"));
  EXPECT_FALSE(chunk->AcquireLayer(0).ok());
  EXPECT_TRUE(chunk->lost());
  EXPECT_TRUE(faulty_.AwaitOpenFiles(0)) << "though it is in use, and its other layer was never asked for";
}

// A client may ask for a thousand chunks at once, each of which is then asked for.
TEST_F(OpenFilesTest, FewAreOpenHoweverManyChunksAreOnTheirWay) {
  constexpr int64_t kMaxHeldFiles = 4;
  const auto store = OpenStore(kMaxHeldFiles);
  absl::Notification go_on;
  faulty_.SetFault([&](int64_t, Operation, const std::string& path) {
    // The layers of the first chunk, on the thread of the queue, while the others are opened.
    if (path == PathOf(SmallAddress(0).key) && store->Stats().prefetched > 0) go_on.WaitForNotification();
    return absl::OkStatus();
  });
  const auto found = store->Prefetch(AllKeys());
  EXPECT_LE(faulty_.open_files(), kMaxHeldFiles + 1);
  go_on.Notify();
  for (const auto& chunk : found) ExpectFilled(*chunk);
  EXPECT_TRUE(faulty_.AwaitOpenFiles(0));
  EXPECT_LE(faulty_.most_open_files(), kMaxHeldFiles + 2) << "one is read, and one is looked into";
}

TEST_F(OpenFilesTest, AnEntryThatGoesBeforeItIsReadIsNotThere) {
  DiskTier* tier = nullptr;
  const auto store = OpenStore(/*max_held_files=*/1, &tier);
  PromptReads reads(store->NewPrompt());
  const auto held = LookupOne(*store, SmallAddress(0).key, &reads);
  const auto other = LookupOne(*store, SmallAddress(1).key, &reads);
  ASSERT_TRUE(held.has_value() && other.has_value());
  EXPECT_EQ(faulty_.open_files(), 1);
  for (const int32_t token : {0, 1}) {
    ASSERT_TRUE(*tier->Erase(kAllNamespaces, SmallAddress(token).key));
    ASSERT_TRUE(Put(*tier, SmallAddress(token), {.label = "another"}).ok());
  }
  ExpectFilled(*held);
  EXPECT_FALSE(other->AcquireLayer(0).ok()) << "its file is another entry's now";
  EXPECT_TRUE(tier->Contains(SmallAddress(1).key));
  EXPECT_EQ(tier->Stats().read_errors, 0);
  EXPECT_FALSE(tier->Stats().read_failing);
}

TEST_F(OpenFilesTest, AFileThatIsGoneIsNoErrorOfTheDisk) {
  DiskTier* tier = nullptr;
  const auto store = OpenStore(/*max_held_files=*/0, &tier);
  PromptReads reads(store->NewPrompt());
  const auto chunk = LookupOne(*store, SmallAddress(0).key, &reads);
  ASSERT_TRUE(memory_.Unlink(PathOf(SmallAddress(0).key)).ok());
  EXPECT_FALSE(chunk->AcquireLayer(0).ok());
  EXPECT_FALSE(tier->Contains(SmallAddress(0).key));
  EXPECT_EQ(tier->Stats().vanished, 1);
  EXPECT_FALSE(tier->Stats().read_failing);
}

TEST_F(OpenFilesTest, WhenTooManyAreOpenAChunkIsAMissButSound) {
  DiskTier* tier = nullptr;
  const auto store = OpenStore(/*max_held_files=*/0, &tier);
  const ChunkKey key = SmallAddress(0).key;
  const absl::Status too_many = absl::UnavailableError("open failed: Too many open files");
  faulty_.FailAll(Operation::kOpen, too_many);
  EXPECT_FALSE(LookupOne(*store, key).has_value());
  EXPECT_TRUE(tier->Contains(key)) << "nobody has to write it anew";
  faulty_.Heal();

  PromptReads reads(store->NewPrompt());
  const auto chunk = LookupOne(*store, key, &reads);
  ASSERT_TRUE(chunk.has_value());
  faulty_.FailAll(Operation::kOpen, too_many);
  EXPECT_FALSE(chunk->AcquireLayer(0).ok());
  EXPECT_TRUE(tier->Contains(key));
  faulty_.Heal();
  const auto again = LookupOne(*store, key);
  ASSERT_TRUE(again.has_value()) << "the next lookup reads it";
  ExpectFilled(*again);
}

// A prefetch as large as the queue stands in no prompt's way, and what it loses to the prompt is only late.
TEST_F(OpenFilesTest, AFullQueueTakesWhatAPromptReads) {
  DiskTier::Options options = TierOptions();
  options.reads.max_waiting = 4;
  auto opened = *DiskTier::Open(options);
  DiskTier* const tier = opened.get();
  const auto store = *ChunkStore::Create({.byte_budget = 100 * kChunkBytes, .now = [this] { return now_; }},
                                         Only(std::move(opened)));
  absl::Notification busy, go_on;
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    if (operation == Operation::kRead && path == PathOf(SmallAddress(0).key) && !busy.HasBeenNotified() &&
        store->Stats().prefetched > 0) {
      busy.Notify();
      go_on.WaitForNotification();
    }
    return absl::OkStatus();
  });
  const auto first = store->Prefetch({SmallAddress(0).key});
  busy.WaitForNotification();
  faulty_.Heal();
  const auto prefetched = store->Prefetch({SmallAddress(1).key, SmallAddress(2).key, SmallAddress(3).key});
  const auto needed = LookupOne(*store, SmallAddress(4).key);
  ASSERT_TRUE(needed.has_value());
  EXPECT_FALSE(needed->lost()) << "its reads have room";
  go_on.Notify();
  ExpectFilled(*needed);
  // The second gave its room to the prompt, and there had been none for the third.
  for (const int32_t token : {2, 3}) {
    EXPECT_FALSE(prefetched[token - 1]->AcquireLayer(1).ok());
    EXPECT_TRUE(prefetched[token - 1]->lost());
    EXPECT_TRUE(tier->Contains(SmallAddress(token).key)) << "nothing is wrong with it";
    const auto again = LookupOne(*store, SmallAddress(token).key);
    ASSERT_TRUE(again.has_value()) << "the next lookup reads it";
    ExpectFilled(*again);
  }
  EXPECT_EQ(tier->Stats().read_errors, 0);
  EXPECT_FALSE(tier->Stats().read_failing);
}

}  // namespace
}  // namespace kvblend::store
