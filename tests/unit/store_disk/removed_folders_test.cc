// Somebody removes folders under a running tier: what was in them is lost, and nothing else.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/store/chunk_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

namespace files = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

class RemovedFoldersTest : public DiskTierTest {
 protected:
  RemovedFoldersTest() { Reopen(); }

  void Reopen() {
    tier_.reset();
    DiskTier::Options options = TierOptions();
    options.path = path_;
    options.fs = &PosixFileSystem();
    tier_ = *DiskTier::Open(options);
  }

  const test_support::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/chunks";
  std::unique_ptr<DiskTier> tier_;
  const ChunkAddress first_ = SmallAddress(1);
  const ChunkAddress second_ = SmallAddress(2);
};

TEST_F(RemovedFoldersTest, WhicheverOfThemTheyAreMadeAnew) {
  const std::string hex = first_.key.ToHex();
  for (const std::string& name :
       {std::string("entries"), std::string("tmp"), std::string("quarantine"), "entries/" + hex.substr(0, 2),
        "entries/" + hex.substr(0, 2) + "/" + hex.substr(2, 2)}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(Put(*tier_, first_).ok());
    ASSERT_TRUE(files::remove_all(path_ + "/" + name) > 0);
    OpenNow(*tier_, first_.key).IgnoreError();  // finds out that it is gone, where it is
    EXPECT_TRUE(Put(*tier_, first_).ok());
    EXPECT_TRUE(ReadAndCompare(*tier_, first_).ok());
    EXPECT_FALSE(tier_->Stats().write_failing);
  }
}

TEST_F(RemovedFoldersTest, EntriesThatWentWithThemAreForgotten) {
  ASSERT_TRUE(Put(*tier_, first_).ok());
  ASSERT_TRUE(tier_->SetPinned(kAllNamespaces, first_.key, true).ok());
  files::remove_all(path_ + "/entries");
  ASSERT_TRUE(Put(*tier_, second_).ok());
  EXPECT_FALSE(tier_->Contains(first_.key));
  const DiskTierStats stats = tier_->Stats();
  EXPECT_EQ(stats.entries, 1);
  EXPECT_EQ(stats.bytes, kEntryFileBytes);
  EXPECT_EQ(stats.pinned_entries, 0);
  EXPECT_EQ(stats.vanished, 1);
  EXPECT_THAT(tier_->Report().values,
              Contains(AllOf(Field(&TierStat::name, "vanished"), Field(&TierStat::value, 1))))
      << "or nobody could tell where the entries have gone";
  ASSERT_TRUE(Put(*tier_, first_).ok());
  EXPECT_TRUE(ReadAndCompare(*tier_, first_).ok());
}

TEST_F(RemovedFoldersTest, WhatARestartFoundIsWrittenAnewWhenItsFolderIsGone) {
  const std::string hex = first_.key.ToHex();
  for (const std::string& name : {std::string("entries"), "entries/" + hex.substr(0, 2),
                                  "entries/" + hex.substr(0, 2) + "/" + hex.substr(2, 2)}) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(Put(*tier_, first_).ok());
    Reopen();
    ASSERT_TRUE(files::remove_all(path_ + "/" + name) > 0);
    EXPECT_TRUE(Put(*tier_, first_).ok());
    EXPECT_TRUE(ReadAndCompare(*tier_, first_).ok());
  }
}

TEST_F(RemovedFoldersTest, WhoAsksWhetherAnEntryIsThereStillIsToldSo) {
  ASSERT_TRUE(Put(*tier_, first_).ok());
  tier_->ForgetIfGone(first_.key);
  tier_->ForgetIfGone(second_.key);
  EXPECT_TRUE(tier_->Contains(first_.key));
  files::remove_all(path_ + "/entries");
  tier_->ForgetIfGone(first_.key);
  EXPECT_FALSE(tier_->Contains(first_.key));
  EXPECT_EQ(tier_->Stats().vanished, 1);
}

TEST_F(RemovedFoldersTest, WhatIsPutAgainIsDurableAgainThoughItIsInMemory) {
  DiskTier* const disk = tier_.get();
  std::vector<std::unique_ptr<LowerTier>> tiers;
  tiers.push_back(std::move(tier_));
  const auto store = *ChunkStore::Create({.byte_budget = 10 * kChunkBytes}, std::move(tiers));
  ASSERT_TRUE(store->Insert(first_, FilledKv(first_), {}).ok());
  ASSERT_TRUE(store->WaitUntilDurable(first_.key, absl::InfiniteFuture()).ok());
  files::remove_all(path_ + "/entries");
  const auto found = store->LookupOrReserve(first_);
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_TRUE(std::holds_alternative<ChunkHandle>(*found)) << "it is in memory";
  ASSERT_TRUE(store->WaitUntilDurable(first_.key, absl::InfiniteFuture()).ok());
  EXPECT_TRUE(ReadAndCompare(*disk, first_).ok());
}

TEST_F(RemovedFoldersTest, AnEntryIsDeletedWhoseFolderIsGone) {
  ASSERT_TRUE(Put(*tier_, first_).ok());
  files::remove_all(path_ + "/entries");
  const absl::StatusOr<bool> erased = tier_->Erase(kAllNamespaces, first_.key);
  ASSERT_TRUE(erased.ok()) << erased.status();
  EXPECT_TRUE(*erased);
  EXPECT_FALSE(tier_->Stats().write_failing);
}

// The folder may be another one by now: that of a disk that is not mounted, or of another server.
TEST_F(RemovedFoldersTest, WithoutItsLockFileNothingIsMade) {
  files::remove_all(path_);
  absl::Status status = Put(*tier_, first_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(path_ + "/lock"));
  EXPECT_FALSE(files::exists(path_));

  files::create_directory(path_);
  const auto other = PosixFileSystem().Lock(path_ + "/lock", "process 1 (another server)");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(Put(*tier_, first_).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(files::exists(path_ + "/entries"));
  EXPECT_TRUE(tier_->Stats().write_failing);
}

}  // namespace
}  // namespace kvblend::store
