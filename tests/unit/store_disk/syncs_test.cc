// How often the tier waits for the disk: whatever is durable needs a sync, and nothing needs two.
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using Operation = FaultyFileSystem::Operation;

class SyncsTest : public DiskTierTest {
 protected:
  SyncsTest() {
    faulty_.SetFault([this](int64_t, Operation operation, const std::string& path) {
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

}  // namespace
}  // namespace kvblend::store
