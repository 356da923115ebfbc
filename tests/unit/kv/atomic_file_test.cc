#include "engine/kv/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
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
  EXPECT_EQ(*ReadWholeFile(path_), "new");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(AtomicFileTest, IsRefusedWhileAnotherWritesIt) {
  ASSERT_TRUE(ReplaceFile(path_, "old").ok());
  const int other = open((path_ + ".part").c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_EQ(flock(other, LOCK_EX), 0);
  const absl::Status status = ReplaceFile(path_, "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), testing::HasSubstr(path_));
  EXPECT_EQ(*ReadWholeFile(path_), "old");
  close(other);
  ASSERT_TRUE(ReplaceFile(path_, "new").ok());
  EXPECT_EQ(*ReadWholeFile(path_), "new");
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
        const std::string found = *ReadWholeFile(path_);
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
