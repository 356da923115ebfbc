// A disk that is full or fails: fewer cached chunks, and nothing else.
#include <memory>
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

const absl::Status kNoSpace = absl::ResourceExhaustedError("no space left");
const absl::Status kDeviceError = absl::InternalError("input/output error");

class DiskTierFaultsTest : public DiskTierTest {
 protected:
  const ChunkAddress first_ = SmallAddress(1);
  const ChunkAddress second_ = SmallAddress(2);
};

TEST_F(DiskTierFaultsTest, EveryFailureWhileWritingLeavesNothingBehind) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, first_).ok());
  int64_t num_failures = 0;
  for (const absl::Status& fault : {kNoSpace, kDeviceError}) {
    for (int64_t failing = 2;; ++failing) {  // the first asks how much space there is
      SCOPED_TRACE(testing::Message() << fault << " in operation " << failing);
      const int64_t before = faulty_.num_operations();
      faulty_.SetFault([&](int64_t number, Operation, const std::string&) {
        return number == before + failing ? fault : absl::OkStatus();
      });
      const absl::Status status = Put(*tier, second_);
      const bool done = faulty_.num_operations() < before + failing;
      faulty_.Heal();
      EXPECT_TRUE(ReadAndCompare(*tier, first_).ok());
      EXPECT_EQ(NumFilesIn("tmp"), 0);
      EXPECT_EQ(tier->Contains(second_.key), status.ok());
      EXPECT_EQ(memory_.Exists(PathOf(second_.key)), status.ok());
      EXPECT_EQ(tier->Stats().bytes, (status.ok() ? 2 : 1) * kEntryFileBytes);
      if (status.ok()) {
        ASSERT_TRUE(*tier->Erase(kAllNamespaces, second_.key));
      } else {
        ++num_failures;
        EXPECT_EQ(status.code(),
                  fault == kNoSpace ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable);
        EXPECT_EQ(tier->Stats().put_failures, num_failures);
        EXPECT_EQ(tier->Stats().disk_full, fault == kNoSpace);
        EXPECT_EQ(tier->Stats().write_failing, fault != kNoSpace);
      }
      if (done || HasFailure()) break;
    }
  }
  EXPECT_GE(num_failures, 16);
  ASSERT_TRUE(Put(*tier, second_).ok());
  EXPECT_FALSE(tier->Stats().disk_full);
  EXPECT_FALSE(tier->Stats().write_failing);
}

TEST_F(DiskTierFaultsTest, ADiskSmallerThanTheQuotaHoldsWhatFits) {
  DiskTier::Options options = TierOptions(100);
  options.min_free_bytes = kEntryFileBytes;
  memory_.SetCapacity(4 * kEntryFileBytes);
  auto tier = *DiskTier::Open(options);
  EXPECT_EQ(tier->RoomOf("n"), 3 * kEntryFileBytes);
  std::ostringstream log;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
  for (int32_t token = 0; token < 10; ++token) {
    ASSERT_TRUE(Put(*tier, SmallAddress(token)).ok());
    EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(token)).ok());
  }
  EXPECT_EQ(tier->Stats().entries, 3);
  spdlog::set_default_logger(before);
  EXPECT_EQ(tier->RoomOf("n"), 3 * kEntryFileBytes) << "what is there can be given up";
  tier->LimitNamespaces({{"n", 5}});
  EXPECT_EQ(tier->RoomOf("n"), 5);
  EXPECT_EQ(tier->RoomOf("other"), 3 * kEntryFileBytes);
  EXPECT_EQ(tier->Stats().evictions, 7);
  // Somebody must find out why, though the quota has room: from a counter, and from one line a minute.
  EXPECT_EQ(tier->Stats().evictions_for_space, 7);
  const std::string line = absl::StrCat(" has ", kEntryFileBytes, " bytes free; allowed: ", kEntryFileBytes,
                                        "; 1 chunks are evicted for it\n");
  EXPECT_THAT(log.str(), HasSubstr(line));
  EXPECT_EQ(log.str().find("evicted"), log.str().rfind("evicted"));
  // Someone else fills the disk: what can't be made to fit takes nothing with it.
  memory_.SetCapacity(kEntryFileBytes);
  EXPECT_EQ(Put(*tier, SmallAddress(11)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(tier->Stats().entries, 3);
  EXPECT_EQ(tier->Stats().put_failures, 1);
  EXPECT_TRUE(tier->Stats().disk_full);
  EXPECT_TRUE(ReadAndCompare(*tier, SmallAddress(9)).ok());
}

TEST_F(DiskTierFaultsTest, AReadErrorIsAMissUntilTheDiskWorksAgain) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, first_).ok());
  faulty_.FailAll(Operation::kRead, kDeviceError);
  EXPECT_EQ(ReadAndCompare(*tier, first_).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(tier->Stats().read_failing);
  EXPECT_EQ(tier->Stats().read_errors, 1);
  faulty_.Heal();
  EXPECT_TRUE(ReadAndCompare(*tier, first_).ok());
  EXPECT_FALSE(tier->Stats().read_failing);
  EXPECT_EQ(tier->Stats().quarantined, 0);
}

TEST_F(DiskTierFaultsTest, AnEntryThatCannotBeReadIsWrittenAnew) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, first_, {.label = "old"}).ok());
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, first_.key, true).ok());
  faulty_.FailAll(Operation::kRead, kDeviceError);
  EXPECT_FALSE(ReadAndCompare(*tier, first_).ok());
  faulty_.FailAll(Operation::kSync, kDeviceError);
  EXPECT_FALSE(Put(*tier, first_, {.label = "new"}).ok());
  EXPECT_TRUE(tier->Stat(kAllNamespaces, first_.key).has_value()) << "a good file may still be there";
  EXPECT_FALSE(tier->Contains(first_.key)) << "so that it is offered";
  faulty_.Heal();
  // That it can be read says nothing of the layer that could not.
  EXPECT_TRUE(ReadAndCompare(*tier, first_).ok());
  EXPECT_FALSE(tier->Contains(first_.key));
  ASSERT_TRUE(Put(*tier, first_, {.label = "new"}).ok());
  EXPECT_EQ(tier->Stat(kAllNamespaces, first_.key)->label, "new");
  EXPECT_TRUE(tier->Stat(kAllNamespaces, first_.key)->pinned);
  EXPECT_EQ(tier->Stats().entries, 1);
  EXPECT_EQ(tier->Stats().bytes, kEntryFileBytes);
  EXPECT_TRUE(tier->Contains(first_.key));
  EXPECT_TRUE(ReadAndCompare(*tier, first_).ok());
}

TEST_F(DiskTierFaultsTest, ShortReadsAndWritesGoOn) {
  for (const int64_t transfer : {1, 100, 4096, 5000}) {
    faulty_.SetMaxTransfer(transfer);
    auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, first_).ok());
    EXPECT_TRUE(ReadAndCompare(*tier, first_).ok());
    ASSERT_TRUE(*tier->Erase(kAllNamespaces, first_.key));
  }
}

TEST_F(DiskTierFaultsTest, AnEntryThatCannotBeReadAtStartIsLeftAlone) {
  {
    auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, first_).ok());
    ASSERT_TRUE(Put(*tier, second_).ok());
  }
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    return operation == Operation::kRead && path == PathOf(first_.key) ? kDeviceError : absl::OkStatus();
  });
  auto tier = OpenTier();
  EXPECT_FALSE(tier->Contains(first_.key));
  EXPECT_TRUE(ReadAndCompare(*tier, second_).ok());
  EXPECT_EQ(tier->Stats().unreadable_entries, 1);
  EXPECT_TRUE(memory_.Exists(PathOf(first_.key)));
  tier.reset();
  faulty_.Heal();
  EXPECT_TRUE(ReadAndCompare(*OpenTier(), first_).ok());
}

class EntryLeftAloneTest : public DiskTierFaultsTest {
 protected:
  /// With the first entry, pinned, on a device that cannot read it.
  std::unique_ptr<DiskTier> OpenWithAnUnreadableEntry() {
    {
      auto tier = OpenTier();
      EXPECT_TRUE(Put(*tier, first_).ok());
      EXPECT_TRUE(tier->SetPinned(kAllNamespaces, first_.key, true).ok());
    }
    faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
      return operation == Operation::kRead && path == PathOf(first_.key) ? kDeviceError : absl::OkStatus();
    });
    auto tier = OpenTier();
    EXPECT_EQ(tier->Stats().unreadable_entries, 1);
    faulty_.Heal();
    return tier;
  }
};

TEST_F(EntryLeftAloneTest, KeepsItsPinWhenItIsWrittenAnew) {
  auto tier = OpenWithAnUnreadableEntry();
  ASSERT_TRUE(Put(*tier, first_).ok());
  EXPECT_TRUE(tier->Stat(kAllNamespaces, first_.key)->pinned) << "as it will be after the next start";
  EXPECT_EQ(tier->Stats().pinned_entries, 1);
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, first_.key, false).ok());
  tier.reset();
  EXPECT_FALSE(OpenTier()->Stat(kAllNamespaces, first_.key)->pinned);
}

TEST_F(EntryLeftAloneTest, GoesWhenItIsErased) {
  auto tier = OpenWithAnUnreadableEntry();
  EXPECT_TRUE(*tier->Erase(kAllNamespaces, first_.key));
  EXPECT_FALSE(*tier->Erase(kAllNamespaces, first_.key));
  EXPECT_FALSE(memory_.Exists(PathOf(first_.key)));
  EXPECT_FALSE(memory_.Exists(PathOf(first_.key, ".pin")));
  tier.reset();
  EXPECT_FALSE(OpenTier()->Contains(first_.key)) << "or what was deleted would come back";
}

TEST_F(DiskTierFaultsTest, AnErasureThatFailedIsTriedAgain) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, first_).ok());
  faulty_.FailAll(Operation::kUnlink, kDeviceError);
  EXPECT_EQ(tier->Erase(kAllNamespaces, first_.key).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(tier->Erase(kAllNamespaces, first_.key).status().code(), absl::StatusCode::kUnavailable);
  faulty_.Heal();
  EXPECT_TRUE(*tier->Erase(kAllNamespaces, first_.key));
  tier.reset();
  EXPECT_FALSE(OpenTier()->Contains(first_.key));
}

TEST_F(DiskTierFaultsTest, PinsAndErasuresThatFailSaySo) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, first_).ok());
  faulty_.FailAll(Operation::kCreate, kNoSpace);
  EXPECT_EQ(tier->SetPinned(kAllNamespaces, first_.key, true).code(), absl::StatusCode::kResourceExhausted);
  faulty_.FailAll(Operation::kSyncFolder, kDeviceError);
  EXPECT_EQ(tier->SetPinned(kAllNamespaces, first_.key, true).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(tier->Stat(kAllNamespaces, first_.key)->pinned);
  EXPECT_FALSE(memory_.Exists(PathOf(first_.key, ".pin")));
  faulty_.FailAll(Operation::kUnlink, kDeviceError);
  EXPECT_EQ(tier->Erase(kAllNamespaces, first_.key).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(tier->Contains(first_.key));
  EXPECT_EQ(tier->Stats().delete_failures, 1);
}

TEST_F(DiskTierFaultsTest, AnEntryThatCannotBeUnpinnedIsPinnedAfterARestartToo) {
  auto tier = OpenTier();
  ASSERT_TRUE(Put(*tier, first_).ok());
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, first_.key, true).ok());
  for (const Operation operation : {Operation::kUnlink, Operation::kSyncFolder}) {
    faulty_.FailAll(operation, kDeviceError);
    EXPECT_EQ(tier->SetPinned(kAllNamespaces, first_.key, false).code(), absl::StatusCode::kUnavailable);
    faulty_.Heal();
    EXPECT_TRUE(tier->Stat(kAllNamespaces, first_.key)->pinned);
    EXPECT_TRUE(memory_.Exists(PathOf(first_.key, ".pin")));
    tier.reset();
    tier = OpenTier();
    EXPECT_TRUE(tier->Stat(kAllNamespaces, first_.key)->pinned);
  }
  ASSERT_TRUE(tier->SetPinned(kAllNamespaces, first_.key, false).ok());
  EXPECT_FALSE(memory_.Exists(PathOf(first_.key, ".pin")));
}

TEST_F(DiskTierFaultsTest, AFolderThatCannotBeUsedIsAnErrorThatNamesIt) {
  for (const Operation operation : {Operation::kMakeFolder, Operation::kLock, Operation::kList}) {
    faulty_.FailAll(operation, absl::PermissionDeniedError("/var/chunks: permission denied"));
    const auto tier = DiskTier::Open(TierOptions());
    EXPECT_EQ(tier.status().code(), absl::StatusCode::kPermissionDenied);
    EXPECT_THAT(tier.status().message(), HasSubstr("/var/chunks"));
  }
}

}  // namespace
}  // namespace kvblend::store
