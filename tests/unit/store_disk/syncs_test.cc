// How often the tier waits for the disk: whatever is durable needs a sync, and nothing needs two.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "engine/store/chunk_store.h"
#include "gtest/gtest.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using Operation = FaultyFileSystem::Operation;

class SyncsTest : public DiskTierTest {
 protected:
  SyncsTest() {
    faulty_.SetFault([this](int64_t, Operation operation, const std::string& path) {
      absl::MutexLock lock(&mutex_);
      if (operation == Operation::kSync) ++file_syncs_;
      if (operation == Operation::kSyncFolder) ++folder_syncs_[path];
      if (operation == Operation::kMakeFolder) ++made_folders_;
      return absl::OkStatus();
    });
  }

  void Forget() {
    file_syncs_ = 0;
    made_folders_ = 0;
    folder_syncs_.clear();
  }
  /// Of folders at so many levels below that of the entries.
  int64_t SyncsAt(int levels) const {
    const std::string entries = "/var/chunks/entries";
    int64_t syncs = 0;
    for (const auto& [path, count] : folder_syncs_) {
      if (path.rfind(entries, 0) == 0 && path.size() == entries.size() + 3 * static_cast<size_t>(levels)) {
        syncs += count;
      }
    }
    return syncs;
  }

  absl::Mutex mutex_;  // guards what follows while several threads sync
  int64_t file_syncs_ = 0;
  int64_t made_folders_ = 0;
  std::map<std::string, int64_t> folder_syncs_;
};

TEST_F(SyncsTest, APutSyncsItsFileItsFolderAndTheFoldersThatAreNew) {
  constexpr int32_t kNumChunks = 600;
  auto tier = OpenTier(kNumChunks);
  for (const char* process : {"the first", "one that finds the folders"}) {
    SCOPED_TRACE(process);
    Forget();
    std::map<std::string, std::map<std::string, int64_t>> folders;
    for (int32_t token = 0; token < kNumChunks; ++token) {
      const ChunkKey key = SmallAddress(token).key;
      ++folders[key.ToHex().substr(0, 2)][key.ToHex().substr(2, 2)];
      ASSERT_TRUE(Put(*tier, SmallAddress(token)).ok());
    }
    int64_t inner_folders = 0;
    for (const auto& [outer, inner] : folders) inner_folders += static_cast<int64_t>(inner.size());
    EXPECT_EQ(file_syncs_, kNumChunks);
    EXPECT_EQ(SyncsAt(2), kNumChunks);
    EXPECT_EQ(SyncsAt(1), inner_folders) << "each for the name of a folder";
    EXPECT_EQ(SyncsAt(0), static_cast<int64_t>(folders.size()));
    EXPECT_LE(SyncsAt(0), 256);
    EXPECT_EQ(made_folders_, inner_folders + static_cast<int64_t>(folders.size()));
    for (int32_t token = 0; token < kNumChunks; ++token) {
      ASSERT_TRUE(*tier->Erase(kAllNamespaces, SmallAddress(token).key));
    }
    tier.reset();
    tier = OpenTier(kNumChunks);
  }
}

TEST_F(SyncsTest, ErasingManySyncsEachFolderOnceAndTellsOfEachWhetherItIsGone) {
  constexpr int32_t kNumChunks = 1000;
  auto tier = OpenTier(kNumChunks);
  std::vector<ChunkKey> keys;
  std::map<std::string, int64_t> chunks_in;  // by folder
  for (int32_t token = 0; token < kNumChunks; ++token) {
    ASSERT_TRUE(Put(*tier, SmallAddress(token)).ok());
    keys.push_back(SmallAddress(token).key);
    ++chunks_in[FolderAbove(PathOf(keys.back()))];
  }
  ASSERT_LT(chunks_in.size(), keys.size()) << "no two of them share a folder";
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, keys[1], true).ok());
  keys.push_back(SmallAddress(kNumChunks).key);  // is not there
  keys.push_back(keys[0]);                       // twice
  const std::string failing = FolderAbove(PathOf(keys[2]));
  Forget();
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    absl::MutexLock lock(&mutex_);
    if (operation == Operation::kSyncFolder) ++folder_syncs_[path];
    const bool fails = operation == Operation::kSyncFolder && path == failing;
    return fails ? absl::InternalError("device failed") : absl::OkStatus();
  });
  const auto erased = tier->EraseAll(kAllNamespaces, keys);
  ASSERT_EQ(erased.size(), keys.size());
  for (size_t i = 0; i < kNumChunks; ++i) {
    EXPECT_FALSE(tier->Contains(keys[i]));
    if (FolderAbove(PathOf(keys[i])) == failing) {
      EXPECT_EQ(erased[i].status().code(), absl::StatusCode::kUnavailable) << i;
    } else {
      EXPECT_TRUE(erased[i].ok() && *erased[i]) << i;
    }
  }
  EXPECT_FALSE(*erased[kNumChunks]);
  EXPECT_FALSE(*erased[kNumChunks + 1]);
  EXPECT_EQ(folder_syncs_.size(), chunks_in.size());
  EXPECT_EQ(SyncsAt(2), static_cast<int64_t>(chunks_in.size()));
  EXPECT_EQ(tier->Stats().delete_failures, chunks_in[failing]);
  faulty_.Heal();
  EXPECT_TRUE(*tier->EraseAll(kAllNamespaces, absl::MakeConstSpan(&keys[2], 1))[0]) << "tried again";
  tier.reset();
  EXPECT_EQ(OpenTier()->Stats().entries, 0);
}

// A sync is mostly waiting, and a disk does many at once.
TEST_F(SyncsTest, DeletingANamespaceWaitsForManyFoldersAtOnce) {
  constexpr int32_t kNumChunks = 4;
  std::vector<std::unique_ptr<LowerTier>> tiers;
  tiers.push_back(OpenTier());
  const auto store = *ChunkStore::Create({.byte_budget = 100 * kEntryFileBytes}, std::move(tiers));
  std::set<std::string> folders;
  for (int32_t token = 0; token < kNumChunks; ++token) {
    const ChunkAddress address = SmallAddress(token);
    folders.insert(FolderAbove(PathOf(address.key)));
    ASSERT_TRUE(store->Insert(address, FilledKv(address), {}).ok());
    ASSERT_TRUE(store->WaitUntilDurable(address.key, absl::InfiniteFuture()).ok());
  }
  ASSERT_EQ(folders.size(), kNumChunks);
  int32_t waiting = 0;
  faulty_.SetFault([&](int64_t, Operation operation, const std::string&) {
    if (operation != Operation::kSyncFolder) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    ++waiting;
    const auto all_wait = [&] { return waiting == kNumChunks; };
    const bool together = mutex_.AwaitWithTimeout(absl::Condition(&all_wait), absl::Seconds(10));
    return together ? absl::OkStatus() : absl::InternalError("waits alone");
  });
  const ChunkCatalog::Cleared cleared = store->Clear(kAllNamespaces);
  faulty_.Heal();
  EXPECT_EQ(cleared.erased, kNumChunks);
  EXPECT_EQ(cleared.failed, 0) << cleared.failure;
}

}  // namespace
}  // namespace kvblend::store
