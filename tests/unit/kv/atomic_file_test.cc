#include "engine/kv/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::kv {
namespace {

class AtomicFileTest : public testing::Test {
 protected:
  const test_support::TemporaryFolder folder_;
  const std::string path_ = folder_.path() + "/file";
};

TEST_F(AtomicFileTest, TakesOverWhatOneThatDiedHasLeft) {
  std::ofstream(path_ + ".part") << std::string(1000, 'x');
  ASSERT_TRUE(ReplaceFile(path_, "new").ok());
  EXPECT_EQ(*ReadWholeFile(path_, ""), "new");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(AtomicFileTest, IsRefusedWhileAnotherWritesIt) {
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  const int other = open((path_ + ".part").c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  const absl::Status status = ReplaceFile(path_, "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), testing::HasSubstr(path_));
  EXPECT_EQ(*ReadWholeFile(path_, ""), "old");
  close(other);
  ASSERT_TRUE(ReplaceFile(path_, "new").ok());
  EXPECT_EQ(*ReadWholeFile(path_, ""), "new");
}

TEST_F(AtomicFileTest, OfWhatIsSomethingElseOnlyTheBeginningIsRead) {
  std::ofstream(path_) << "GGUF";
  std::filesystem::resize_file(path_, uint64_t{1} << 36);  // no block of it is on the disk
  const auto bytes = ReadWholeFile(path_, "magic");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LE(bytes->size(), 1 << 20);
  EXPECT_EQ(bytes->substr(0, 5), std::string("GGUF\0", 5));
  std::ofstream(path_) << "mag";
  EXPECT_EQ(*ReadWholeFile(path_, "magic"), "mag");
  std::ofstream(path_) << "magic" << std::string(1'000'000, 'x');
  EXPECT_EQ(ReadWholeFile(path_, "magic")->size(), 1'000'005);
}

TEST_F(AtomicFileTest, SaysBeforehandWhatCannotBeWritten) {
  EXPECT_TRUE(CheckReplaceable(path_).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  EXPECT_TRUE(CheckReplaceable(path_).ok());
  EXPECT_EQ(*ReadWholeFile(path_, ""), "old");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));

  const std::string nowhere = folder_.path() + "/no/file";
  const absl::Status missing = CheckReplaceable(nowhere);
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), testing::HasSubstr(nowhere));
  for (const std::string& other : {folder_.path(), std::string("/dev/null")}) {
    const absl::Status refused = CheckReplaceable(other);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), testing::HasSubstr(other));
  }
  const int busy = open((path_ + ".part").c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_EQ(flock(busy, LOCK_EX), 0);
  EXPECT_EQ(CheckReplaceable(path_).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::exists(path_ + ".part"));
  close(busy);
}

TEST_F(AtomicFileTest, APipeIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0644), 0);
  for (const std::string& other : {path_, folder_.path(), std::string("/dev/zero")}) {
    const auto bytes = ReadWholeFile(other, "");
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument) << bytes.status();
    EXPECT_THAT(bytes.status().message(), testing::HasSubstr(other));
  }
  ASSERT_EQ(mkfifo((path_ + "2.part").c_str(), 0644), 0);
  for (const absl::Status& refused : {CheckReplaceable(path_ + "2"), ReplaceFile(path_ + "2", "new")}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(refused.message(), testing::HasSubstr(path_ + "2.part"));
  }
}

TEST_F(AtomicFileTest, WhatALinkPointsToStaysAsItIs) {
  const std::string precious = folder_.path() + "/precious";
  std::ofstream(precious) << "precious";
  std::filesystem::create_symlink(precious, path_ + ".part");
  EXPECT_EQ(ReplaceFile(path_, "new").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*ReadWholeFile(precious, ""), "precious");
}

TEST_F(AtomicFileTest, WhatALinkLeadsToIsReplacedAndTheLinkStays) {
  const std::string behind = folder_.path() + "/behind";
  std::filesystem::create_symlink("behind", folder_.path() + "/second");
  std::filesystem::create_symlink(folder_.path() + "/second", path_);
  for (const char* bytes : {"new", "newer"}) {  // first it leads nowhere
    EXPECT_TRUE(CheckReplaceable(path_).ok());
    ASSERT_TRUE(ReplaceFile(path_, bytes).ok());
    EXPECT_TRUE(std::filesystem::is_symlink(path_));
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(behind)));
    EXPECT_EQ(*ReadWholeFile(behind, ""), bytes);
  }
  std::filesystem::create_symlink("circle", folder_.path() + "/circle");
  EXPECT_EQ(ReplaceFile(folder_.path() + "/circle", "x").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AtomicFileTest, TheModeStays) {
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  for (const mode_t mode : {0600, 0640, 0444}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    ASSERT_TRUE(ReplaceFile(path_, "new").ok());
    struct stat found;
    ASSERT_EQ(stat(path_.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, mode);
  }
}

TEST_F(AtomicFileTest, WhatIsNotFinishedLeavesTheOldFile) {
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  {
    absl::StatusOr<FileReplacement> replacement = FileReplacement::Begin(path_);
    ASSERT_TRUE(replacement.ok()) << replacement.status();
    ASSERT_TRUE(replacement->Write("half").ok());
    EXPECT_EQ(FileReplacement::Begin(path_).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(*ReadWholeFile(path_, ""), "old");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(AtomicFileTest, IsRemovedOnce) {
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  EXPECT_TRUE(RemoveFile(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_TRUE(RemoveFile(path_).ok());
  const absl::Status folder = RemoveFile(folder_.path());
  EXPECT_FALSE(folder.ok());
  EXPECT_THAT(folder.message(), testing::HasSubstr(folder_.path()));
}

TEST_F(AtomicFileTest, IsWholeWhoeverWritesIt) {
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      const std::string bytes(100'000 + writer, static_cast<char>('a' + writer));
      for (int round = 0; round < 50; ++round) {
        const absl::Status status = ReplaceFile(path_, bytes);
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
        if (!status.ok()) continue;
        const std::string found = *ReadWholeFile(path_, "");
        ASSERT_FALSE(found.empty());
        EXPECT_EQ(found, std::string(100'000 + (found[0] - 'a'), found[0]));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

}  // namespace
}  // namespace kvblend::kv
