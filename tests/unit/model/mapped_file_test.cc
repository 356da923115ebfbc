#include "engine/model/files/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"

namespace kvblend::model {
namespace {

/// Bytes of the mapping that begins at `address` which are in this process's memory now, as the kernel tells;
/// -1 where there is no such mapping.
int64_t ResidentBytes(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    int64_t kilobytes = 0;
    if (std::sscanf(line.c_str(), "%lx-", &begin) == 1 && line.find('-') < line.find(' ')) {
      inside = begin == reinterpret_cast<uintptr_t>(address);
    } else if (inside && std::sscanf(line.c_str(), "Rss: %ld kB", &kilobytes) == 1) {
      return kilobytes * 1024;
    }
  }
  return -1;
}

int64_t SumOf(absl::Span<const std::byte> bytes) {
  int64_t sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<int64_t>(byte);
  return sum;
}

class MappedFileTest : public testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    const std::string path = folder_.path() + "/file";
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  test_support::TemporaryFolder folder_;
};

TEST_F(MappedFileTest, WhatWasReadIsGivenBackAndComesAgain) {
  constexpr int64_t kPage = 4096, kMiB = int64_t{1} << 20;
  std::string bytes(16 * kMiB + 100, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  const auto file = MappedFile::Open(Write(bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  const absl::Span<const std::byte> mapped = (*file)->bytes();
  const int64_t sum = SumOf(mapped), all = ResidentBytes(mapped.data());
  ASSERT_GE(all, 16 * kMiB);
  // With the range goes what lies beside it, and no more.
  ReleaseMappedPages(mapped.subspan(6 * kMiB + 1, 3 * kMiB));
  const int64_t left = ResidentBytes(mapped.data());
  EXPECT_LE(left, all - 3 * kMiB);
  EXPECT_GE(left, all - 7 * kMiB);
  EXPECT_EQ(SumOf(mapped), sum);
  ReleaseMappedPages(mapped);
  EXPECT_LE(ResidentBytes(mapped.data()), kPage);
  EXPECT_EQ(SumOf(mapped), sum);
}

TEST_F(MappedFileTest, OtherMemoryIsLeftAsItIs) {
  const auto file = MappedFile::Open(Write("a file"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<std::byte> bytes(100 * 4096, std::byte{5});
  ReleaseMappedPages(bytes);
  EXPECT_EQ(SumOf(bytes), 5 * 100 * 4096);
  ReleaseMappedPages({});
}

// Nobody writes into the pipe: opening it must not wait for that.
TEST_F(MappedFileTest, APipeIsRefusedAtOnce) {
  const std::string path = folder_.path() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const absl::Status status = MappedFile::Open(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), path + ": not a regular file");
}

}  // namespace
}  // namespace kvblend::model
