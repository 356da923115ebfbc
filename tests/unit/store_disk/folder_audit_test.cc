// Looking at a folder without a server: every kind of damage is named, nothing is changed unless asked for.
#include "engine/store/disk/folder_audit.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Operation = FaultyFileSystem::Operation;

class FolderAuditTest : public DiskTierTest {
 protected:
  void SetUp() override {
    auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, first_, {.label = "first", .compute_cost_seconds = 0.5}).ok());
    ASSERT_TRUE(Put(*tier, second_).ok());
    ASSERT_TRUE(tier->SetPinned(kAllNamespaces, second_.key, true).ok());
  }

  AuditOptions Options(bool quarantine = false) {
    AuditOptions options;
    options.path = "/var/chunks";
    options.num_threads = 3;
    options.quarantine = quarantine;
    options.fs = &faulty_;
    return options;
  }
  FolderAudit Audit(const AuditOptions& options) {
    auto audit = AuditFolder(options);
    EXPECT_TRUE(audit.ok()) << audit.status();
    return audit.ok() ? *std::move(audit) : FolderAudit();
  }
  FolderAudit Audit() { return Audit(Options()); }

  static std::string Below(const std::string& path) {
    return path.substr(std::string("/var/chunks/").size());
  }

  const ChunkAddress first_ = SmallAddress(1);
  const ChunkAddress second_ = SmallAddress(2, 8, {0}, "tenant");
};

TEST_F(FolderAuditTest, TellsWhatIsThere) {
  const std::string hex(64, 'a');
  memory_.SetContents("/var/chunks/tmp/" + hex + ".1", std::vector<std::byte>(100));
  memory_.SetContents("/var/chunks/quarantine/" + hex + ".kvb1", std::vector<std::byte>(30));
  for (const char* of_others : {"tmp/mine", "quarantine/mine"}) {
    memory_.SetContents(std::string("/var/chunks/") + of_others, std::vector<std::byte>(10));
  }
  const FolderAudit audit = Audit();
  EXPECT_THAT(audit.findings, IsEmpty());
  ASSERT_THAT(audit.entries, SizeIs(2));
  EXPECT_TRUE(audit.entries[0].key < audit.entries[1].key);
  const auto& first = audit.entries[audit.entries[0].key == first_.key ? 0 : 1];
  const auto& second = audit.entries[audit.entries[0].key == first_.key ? 1 : 0];
  EXPECT_EQ(first.key, first_.key);
  EXPECT_EQ(first.label, "first");
  EXPECT_EQ(first.compute_cost_seconds, 0.5);
  EXPECT_EQ(first.num_tokens, 8);
  EXPECT_EQ(first.bytes, kEntryFileBytes);
  EXPECT_EQ(first.format, SmallFormat());
  EXPECT_EQ(first.created, now_);
  EXPECT_FALSE(first.pinned);
  EXPECT_EQ(second.tenant_namespace, "tenant");
  EXPECT_TRUE(second.pinned);
  EXPECT_EQ(audit.temporary.files, 1);
  EXPECT_EQ(audit.temporary.bytes, 100);
  EXPECT_EQ(audit.quarantine.files, 1);
  EXPECT_EQ(audit.quarantine.bytes, 30);
  EXPECT_EQ(audit.read_bytes, 2 * kEntryFileBytes);
}

TEST_F(FolderAuditTest, EveryFlippedBitIsFound) {
  const std::vector<std::byte> whole = memory_.Contents(PathOf(first_.key));
  std::mt19937_64 random(20261121);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    const size_t position = random() % (i % 2 == 0 ? 4096 : whole.size());
    const auto bit = static_cast<int>(random() % 8);
    SCOPED_TRACE(testing::Message() << "bit " << bit << " of byte " << position);
    std::vector<std::byte> bytes = whole;
    bytes[position] ^= std::byte{1} << bit;
    memory_.SetContents(PathOf(first_.key), bytes);
    const FolderAudit audit = Audit();
    ASSERT_THAT(audit.findings, SizeIs(1));
    EXPECT_EQ(audit.findings[0].finding, Finding::kDamaged) << audit.findings[0].reason;
    EXPECT_EQ(audit.findings[0].path, Below(PathOf(first_.key)));
    EXPECT_EQ(audit.findings[0].bytes, kEntryFileBytes);
    EXPECT_NE(audit.findings[0].reason, "");
    EXPECT_THAT(audit.entries, SizeIs(1));
    EXPECT_TRUE(memory_.Contents(PathOf(first_.key)) == bytes) << "looking changes nothing";
  }
}

TEST_F(FolderAuditTest, EveryLengthButTheRightOneIsFound) {
  const std::vector<std::byte> whole = memory_.Contents(PathOf(first_.key));
  for (size_t size = 0; size <= whole.size() + 4096; size += 4096) {
    for (const size_t bytes : {size, size + 1, size + 4095}) {
      if (bytes == whole.size()) continue;
      std::vector<std::byte> other = whole;
      other.resize(bytes);
      memory_.SetContents(PathOf(first_.key), other);
      const FolderAudit audit = Audit();
      ASSERT_EQ(audit.Count(Finding::kDamaged), 1) << bytes << " bytes";
      EXPECT_EQ(audit.findings[0].bytes, static_cast<int64_t>(bytes));
    }
  }
}

TEST_F(FolderAuditTest, HeadersAloneAreQuickAndSeeLess) {
  Damage(first_.key, 4096 + 5);
  AuditOptions options = Options();
  options.read_sections = false;
  const FolderAudit headers = Audit(options);
  EXPECT_THAT(headers.findings, IsEmpty());
  EXPECT_EQ(headers.read_bytes, 2 * 4096);
  const FolderAudit all = Audit();
  ASSERT_THAT(all.findings, SizeIs(1));
  EXPECT_THAT(all.findings[0].reason, HasSubstr("the K section"));
}

TEST_F(FolderAuditTest, OtherFilesAreNamedAndLeftAlone) {
  const std::string folder = PathOf(first_.key).substr(0, PathOf(first_.key).rfind('/'));
  const std::string loose_pin = PathOf(SmallAddress(3).key, ".pin");
  for (const std::string& path : {folder + "/notes.txt", std::string("/var/chunks/entries/readme"),
                                  std::string("/var/chunks/entries/zz/ab.kvb1"), loose_pin}) {
    memory_.SetContents(path, {});
  }
  const std::vector<std::string> before = memory_.AllFiles();
  const FolderAudit audit = Audit();
  EXPECT_EQ(audit.Count(Finding::kForeign), 3);
  EXPECT_EQ(audit.Count(Finding::kLoosePin), 1);
  EXPECT_EQ(audit.Count(Finding::kDamaged), 0);
  EXPECT_TRUE(std::is_sorted(audit.findings.begin(), audit.findings.end(),
                             [](const auto& a, const auto& b) { return a.path < b.path; }));
  EXPECT_THAT(audit.entries, SizeIs(2));
  Audit(Options(/*quarantine=*/true));
  EXPECT_EQ(memory_.AllFiles(), before);
}

TEST_F(FolderAuditTest, AnotherChunksEntryIsDamage) {
  memory_.SetContents(PathOf(first_.key), memory_.Contents(PathOf(second_.key)));
  const FolderAudit audit = Audit();
  ASSERT_EQ(audit.Count(Finding::kDamaged), 1);
  EXPECT_THAT(audit.findings[0].reason, HasSubstr("holds another chunk"));
}

TEST_F(FolderAuditTest, WhatCannotBeReadIsNotCalledDamaged) {
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    return operation == Operation::kRead && path == PathOf(first_.key)
               ? absl::InternalError("input/output error")
               : absl::OkStatus();
  });
  const FolderAudit audit = Audit(Options(/*quarantine=*/true));
  ASSERT_THAT(audit.findings, SizeIs(1));
  EXPECT_EQ(audit.findings[0].finding, Finding::kUnreadable);
  EXPECT_THAT(audit.findings[0].reason, HasSubstr("input/output error"));
  EXPECT_FALSE(audit.findings[0].quarantined);
  EXPECT_TRUE(memory_.Exists(PathOf(first_.key)));
}

TEST_F(FolderAuditTest, ShortReadsGoOn) {
  faulty_.SetMaxTransfer(1000);
  EXPECT_THAT(Audit().findings, IsEmpty());
}

TEST_F(FolderAuditTest, QuarantineMovesDamageWithItsPin) {
  Damage(second_.key, 5000);
  const std::vector<std::byte> damaged = memory_.Contents(PathOf(second_.key));
  const FolderAudit audit = Audit(Options(/*quarantine=*/true));
  ASSERT_THAT(audit.findings, SizeIs(1));
  EXPECT_TRUE(audit.findings[0].quarantined);
  EXPECT_FALSE(memory_.Exists(PathOf(second_.key)));
  EXPECT_FALSE(memory_.Exists(PathOf(second_.key, ".pin")));
  EXPECT_TRUE(memory_.Contents(QuarantinePathOf(second_.key)) == damaged);
  std::mt19937_64 random(1);
  memory_.LosePower(random);
  const FolderAudit again = Audit();
  EXPECT_THAT(again.findings, IsEmpty());
  EXPECT_EQ(again.quarantine.files, 1);
  const auto tier = OpenTier();
  EXPECT_EQ(tier->Stats().quarantined, 0);
  EXPECT_TRUE(ReadAndCompare(*tier, first_).ok());
}

TEST_F(FolderAuditTest, BesideAServerLookingIsSafeAndMovingIsRefused) {
  const auto tier = OpenTier();
  EXPECT_THAT(Audit().entries, SizeIs(2));
  const auto refused = AuditFolder(Options(/*quarantine=*/true));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("/var/chunks/lock"));
  EXPECT_THAT(refused.status().message(), HasSubstr("Stop the server"));
  // An entry that goes between the listing and its turn is no finding.
  faulty_.SetFault([&](int64_t, Operation operation, const std::string& path) {
    if (operation == Operation::kOpen && path == PathOf(first_.key)) memory_.Unlink(path).IgnoreError();
    return absl::OkStatus();
  });
  const FolderAudit audit = Audit();
  EXPECT_THAT(audit.findings, IsEmpty());
  EXPECT_THAT(audit.entries, SizeIs(1));
}

TEST_F(FolderAuditTest, AnyOtherFolderIsRefused) {
  AuditOptions options = Options(/*quarantine=*/true);
  options.path = "/var";
  const auto audit = AuditFolder(options);
  EXPECT_EQ(audit.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(audit.status().message(), HasSubstr("/var/entries"));
  EXPECT_FALSE(memory_.Exists("/var/lock"));
}

TEST_F(FolderAuditTest, ProgressAndInterruption) {
  for (int32_t token = 10; token < 30; ++token) {
    auto tier = OpenTier();
    ASSERT_TRUE(Put(*tier, SmallAddress(token)).ok());
  }
  std::vector<AuditProgress> progress;
  AuditOptions options = Options();
  options.on_progress = [&](const AuditProgress& now) { progress.push_back(now); };
  Audit(options);
  ASSERT_THAT(progress, SizeIs(22));
  for (size_t i = 0; i < progress.size(); ++i) {
    EXPECT_EQ(progress[i].done_entries, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(progress[i].total_entries, 22);
  }
  EXPECT_EQ(progress.back().read_bytes, 22 * kEntryFileBytes);
  std::atomic<int> asked = 0;
  options.keep_going = [&] { return ++asked < 5; };
  EXPECT_EQ(AuditFolder(options).status().code(), absl::StatusCode::kCancelled);
}

TEST(FolderAuditPosixTest, RealFilesPastThePageCache) {
  const test_support::TemporaryFolder folder;
  const ChunkAddress address = SmallAddress(7);
  {
    DiskTier::Options options;  // named, for GCC 12 takes a temporary for uninitialised memory
    options.path = folder.path();
    options.quota_bytes = 1 << 20;
    auto tier = *DiskTier::Open(options);
    ASSERT_TRUE(tier->Put(address, *FilledKv(address), {}).ok());
  }
  AuditOptions options;
  options.path = folder.path();
  auto audit = AuditFolder(options);
  ASSERT_TRUE(audit.ok()) << audit.status();
  EXPECT_THAT(audit->entries, SizeIs(1));
  EXPECT_THAT(audit->findings, IsEmpty());
}

}  // namespace
}  // namespace kvblend::store
