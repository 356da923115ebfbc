// Files that can't be removed: they count until they are gone, and nothing else goes for them.
#include <memory>
#include <optional>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;
using Operation = FaultyFileSystem::Operation;

class UndeletedFilesTest : public DiskTierTest {
 protected:
  UndeletedFilesTest() {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
  }
  ~UndeletedFilesTest() override { spdlog::set_default_logger(logger_before_); }

  /// Entries, all of them or only that of `key`, can't be removed from now on.
  void RefuseToRemove(const std::optional<ChunkKey>& key = std::nullopt) {
    faulty_.SetFault([this, key](int64_t, Operation operation, const std::string& path) {
      if (operation != Operation::kUnlink || !path.ends_with(".kvb1")) return absl::OkStatus();
      if (key.has_value() && path != PathOf(*key)) return absl::OkStatus();
      ++num_refused_;
      return absl::PermissionDeniedError(absl::StrCat(path, ": unlink failed: Operation not permitted"));
    });
  }
  void FillWith(DiskTier& tier, int32_t num_entries) {
    for (int32_t token = 0; token < num_entries; ++token) {
      ASSERT_TRUE(Put(tier, SmallAddress(token), {.compute_cost_seconds = 1}).ok());
    }
  }
  void AMinuteLater() { now_ += absl::Minutes(1); }

  int64_t num_refused_ = 0;
  std::ostringstream log_;

 private:
  const std::shared_ptr<spdlog::logger> logger_before_ = spdlog::default_logger();
};

TEST_F(UndeletedFilesTest, TheFolderStaysWithinTheQuotaAndKeepsWhatItHas) {
  auto tier = OpenTier(/*num_entries=*/20);
  FillWith(*tier, 20);
  RefuseToRemove();
  for (int32_t token = 20; token < 60; ++token) {
    const int64_t before = num_refused_;
    const absl::Status status = Put(*tier, SmallAddress(token), {.compute_cost_seconds = 1});
    ASSERT_FALSE(status.ok());
    EXPECT_LE(num_refused_ - before, 8) << "a disk may take long to refuse";
    if (token == 20) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(status.message(), HasSubstr("unlink failed"));
    }
    ASSERT_EQ(NumFilesIn("entries"), 20);
  }
  const DiskTierStats stats = tier->Stats();
  EXPECT_EQ(stats.entries, 20);
  EXPECT_EQ(stats.bytes, 20 * kEntryFileBytes);
  EXPECT_EQ(stats.evictions, 0);
  EXPECT_EQ(stats.evicted_bytes, 0);
  EXPECT_EQ(stats.delete_failures, num_refused_);
  EXPECT_TRUE(stats.write_failing);
  for (int32_t token = 0; token < 20; ++token) {
    EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(token)).ok()) << "it is still there";
  }
  const std::string log = log_.str();
  EXPECT_THAT(log, HasSubstr("/var/chunks has a file that can't be removed"));
  EXPECT_THAT(log, HasSubstr(".kvb1: unlink failed: Operation not permitted"));
  EXPECT_EQ(log.find("has a file"), log.rfind("has a file")) << "one line a minute";

  faulty_.Heal();
  AMinuteLater();
  for (int32_t token = 20; token < 40; ++token) {
    EXPECT_TRUE(Put(*tier, SmallAddress(token), {.compute_cost_seconds = 1}).ok());
    EXPECT_EQ(NumFilesIn("entries"), 20);
  }
  EXPECT_EQ(tier->Stats().entries, 20);
  EXPECT_EQ(tier->Stats().evictions, 20);
  EXPECT_FALSE(tier->Stats().write_failing);
}

TEST_F(UndeletedFilesTest, OneOfThemTakesNothingButItsOwnRoom) {
  auto tier = OpenTier(/*num_entries=*/4);
  FillWith(*tier, 4);
  RefuseToRemove(SmallAddress(0).key);
  for (int32_t token = 4; token < 40; ++token) {
    EXPECT_TRUE(Put(*tier, SmallAddress(token), {.compute_cost_seconds = 1}).ok());
    ASSERT_EQ(NumFilesIn("entries"), 4);
    EXPECT_EQ(tier->Stats().bytes, 4 * kEntryFileBytes);
  }
  EXPECT_EQ(num_refused_, 1) << "within the same minute";
  EXPECT_TRUE(tier->Contains(SmallAddress(0).key));
  EXPECT_FALSE(tier->Stats().write_failing);
  EXPECT_THAT(log_.str(), HasSubstr(PathOf(SmallAddress(0).key)));
  faulty_.Heal();
  AMinuteLater();
  for (int32_t token = 40; token < 50; ++token) {
    EXPECT_TRUE(Put(*tier, SmallAddress(token), {.compute_cost_seconds = 1}).ok());
  }
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(0).key)));
}

TEST_F(UndeletedFilesTest, ADiskThatIsShortOfSpaceLosesNoEntriesForNothing) {
  DiskTier::Options options = TierOptions(/*num_entries=*/100);
  options.min_free_bytes = kEntryFileBytes;
  memory_.SetCapacity(31 * kEntryFileBytes);
  auto tier = *DiskTier::Open(options);
  FillWith(*tier, 30);
  RefuseToRemove();
  memory_.SetCapacity(30 * kEntryFileBytes);
  for (int32_t token = 30; token < 60; ++token) {
    const int64_t before = num_refused_;
    EXPECT_EQ(Put(*tier, SmallAddress(token)).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_LE(num_refused_ - before, 8);
  }
  EXPECT_GT(num_refused_, 0);
  EXPECT_EQ(tier->Stats().entries, 30);
  EXPECT_EQ(tier->Stats().evictions_for_space, 0);
  EXPECT_TRUE(tier->Stats().disk_full);
  faulty_.Heal();
  AMinuteLater();
  EXPECT_TRUE(Put(*tier, SmallAddress(100)).ok());
}

TEST_F(UndeletedFilesTest, WhatWasErasedCountsUntilItsFileIsGone) {
  auto tier = OpenTier(/*num_entries=*/2);
  FillWith(*tier, 1);
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, SmallAddress(0).key, true).ok());
  RefuseToRemove();
  EXPECT_EQ(tier->Erase(kAllNamespaces, SmallAddress(0).key).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier->Erase(kAllNamespaces, SmallAddress(0).key).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(tier->Contains(SmallAddress(0).key));
  EXPECT_EQ(tier->Stats().entries, 0);
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
  EXPECT_TRUE(Put(*tier, SmallAddress(1)).ok());
  EXPECT_FALSE(Put(*tier, SmallAddress(2)).ok());
  EXPECT_EQ(NumFilesIn("entries"), 2 + 1) << "with the pin's";
  faulty_.Heal();
  AMinuteLater();
  EXPECT_TRUE(Put(*tier, SmallAddress(2)).ok());
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(0).key)));
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(0).key, ".pin")));
  EXPECT_EQ(tier->Stats().entries, 2) << "and nothing had to go";
  EXPECT_EQ(tier->Stats().bytes, 2 * kEntryFileBytes);
  EXPECT_FALSE(*tier->Erase(kAllNamespaces, SmallAddress(0).key));
}

TEST_F(UndeletedFilesTest, WhatWasErasedAndIsWrittenAnewCountsOnce) {
  auto tier = OpenTier();
  FillWith(*tier, 1);
  RefuseToRemove();
  EXPECT_FALSE(tier->Erase(kAllNamespaces, SmallAddress(0).key).ok());
  EXPECT_TRUE(Put(*tier, SmallAddress(0)).ok());
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
  faulty_.Heal();
  AMinuteLater();
  EXPECT_TRUE(Put(*tier, SmallAddress(1)).ok());
  EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(0)).ok()) << "it was not to be removed any more";
}

TEST_F(UndeletedFilesTest, ManyAreTriedAFewAtATime) {
  auto tier = OpenTier();
  FillWith(*tier, 50);
  RefuseToRemove();
  for (int32_t token = 0; token < 50; ++token) {
    EXPECT_FALSE(tier->Erase(kAllNamespaces, SmallAddress(token).key).ok());
  }
  for (int32_t minute = 0; minute < 5; ++minute) {
    AMinuteLater();
    const int64_t before = num_refused_;
    EXPECT_TRUE(Put(*tier, SmallAddress(100 + 2 * minute)).ok());
    EXPECT_TRUE(Put(*tier, SmallAddress(101 + 2 * minute)).ok());
    EXPECT_EQ(num_refused_ - before, 16);
  }
  faulty_.Heal();
  AMinuteLater();
  // From then on without waiting, for it works.
  for (int32_t token = 200; token < 204; ++token) EXPECT_TRUE(Put(*tier, SmallAddress(token)).ok());
  EXPECT_EQ(NumFilesIn("entries"), 14);
  EXPECT_EQ(tier->Stats().bytes, 14 * kEntryFileBytes);
}

TEST_F(UndeletedFilesTest, ADamagedFileThatStaysCountsToo) {
  DiskTier::Options options = TierOptions();
  options.max_quarantined_files = 0;
  auto tier = *DiskTier::Open(options);
  FillWith(*tier, 1);
  Damage(SmallAddress(0).key, 5000);
  RefuseToRemove();
  EXPECT_EQ(ReadAndCompare(*tier, SmallAddress(0)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(tier->Stats().entries, 0);
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
  faulty_.Heal();
  AMinuteLater();
  EXPECT_TRUE(Put(*tier, SmallAddress(1)).ok());
  EXPECT_FALSE(memory_.Exists(PathOf(SmallAddress(0).key)));
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
}

TEST_F(UndeletedFilesTest, AStartWithMoreThanTheQuotaGoesOnWhenItCan) {
  {
    auto tier = OpenTier();
    FillWith(*tier, 30);
  }
  RefuseToRemove();
  auto tier = OpenTier(/*num_entries=*/10);
  EXPECT_EQ(num_refused_, 8);
  EXPECT_EQ(tier->Stats().entries, 30);
  EXPECT_EQ(tier->Stats().bytes, 30 * kEntryFileBytes);
  EXPECT_THAT(log_.str(), HasSubstr("can't be removed"));
  faulty_.Heal();
  AMinuteLater();
  EXPECT_TRUE(Put(*tier, SmallAddress(100)).ok());
  EXPECT_EQ(tier->Stats().entries, 10);
  EXPECT_EQ(NumFilesIn("entries"), 10);
}

TEST_F(UndeletedFilesTest, FoldersThatCannotBeWrittenToAreNamedAtTheStart) {
  {
    auto tier = OpenTier();
    FillWith(*tier, 12);
  }
  EXPECT_EQ(log_.str().find("cannot be written to"), std::string::npos);
  const auto folder_of = [](int32_t token) { return FolderAbove(PathOf(SmallAddress(token).key)); };
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    if (operation != Operation::kCheckWritable || path != folder_of(3)) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(path, ": Permission denied"));
  });
  EXPECT_EQ(OpenTier()->Stats().entries, 12) << "they can be read";
  EXPECT_THAT(log_.str(),
              HasSubstr(absl::StrCat("1 folders below /var/chunks cannot be written to, so that chunks "
                                     "in them cannot be removed: ",
                                     folder_of(3), ": Permission denied\n")));
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    if (operation != Operation::kCheckWritable) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(path, ": Permission denied"));
  });
  log_.str("");
  OpenTier();
  EXPECT_THAT(log_.str(), HasSubstr("15 folders below"));
  EXPECT_THAT(log_.str(),
              HasSubstr("/var/chunks/entries: Permission denied; /var/chunks/tmp: Permission denied"));
  EXPECT_THAT(log_.str(), HasSubstr("; ...\n"));
}

TEST_F(UndeletedFilesTest, TheNextTierIsToldOnlyOfWhatIsGone) {
  auto tier = OpenTier(/*num_entries=*/1);
  int64_t num_told = 0;
  tier->SetEvictionListener([&](const std::shared_ptr<LowerTierEntry>& entry, int64_t) {
    const PageBuffer buffer(entry->header().layer_bytes());
    EXPECT_TRUE(ReadLayerNow(*entry, 0, buffer.bytes()).ok());
    ++num_told;
  });
  FillWith(*tier, 1);
  ASSERT_TRUE(ReadAndCompare(*tier, SmallAddress(0)).ok());
  RefuseToRemove();
  EXPECT_FALSE(Put(*tier, SmallAddress(1)).ok());
  EXPECT_EQ(num_told, 0);
  faulty_.Heal();
  AMinuteLater();
  EXPECT_TRUE(Put(*tier, SmallAddress(1)).ok());
  EXPECT_EQ(num_told, 1);
}

}  // namespace
}  // namespace kvblend::store
