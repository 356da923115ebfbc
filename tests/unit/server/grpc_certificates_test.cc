#include <sys/stat.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "server/grpc/certificates.h"

namespace kvblend::server {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int64_t ChangedSeconds(const std::string& path) {
  struct stat found;
  EXPECT_EQ(stat(path.c_str(), &found), 0);
  return found.st_mtim.tv_sec;
}

TEST(MemoryFileTest, KeepsItsPathAndHasAnotherTimeWithEveryContent) {
  MemoryFile file;
  ASSERT_TRUE(file.Set("one").ok());
  const std::string path = file.path();
  EXPECT_EQ(Read(path), "one");
  const int64_t first = ChangedSeconds(path);
  EXPECT_NE(first, 0);  // which gRPC takes for a file that is not there
  ASSERT_TRUE(file.Set("another").ok());
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(Read(path), "another");
  EXPECT_NE(ChangedSeconds(path), first);
  ASSERT_TRUE(file.Set("").ok());
  EXPECT_EQ(Read(path), "");
}

TEST(MemoryFileTest, ReadersSeeWholeContentsAndNoticeWhenTheyChange) {
  constexpr int kContents = 2000;
  const auto content = [](int64_t i) { return std::string(10000, static_cast<char>('a' + i % 26)); };
  MemoryFile file;
  ASSERT_TRUE(file.Set(content(0)).ok());
  const std::string path = file.path();
  const int64_t first = ChangedSeconds(path);
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      const int64_t before = ChangedSeconds(path);
      const std::string once = Read(path), twice = Read(path);
      EXPECT_EQ(once.size(), 10000u);
      EXPECT_EQ(once, std::string(once.size(), once.front()));
      if (ChangedSeconds(path) != before) continue;
      EXPECT_EQ(once, content(before - first));
      EXPECT_EQ(twice, once);
    }
  });
  for (int i = 1; i < kContents; ++i) ASSERT_TRUE(file.Set(content(i)).ok());
  stop = true;
  reader.join();
}

TEST(TlsContextTest, OfAFileThatCannotBeReadTheSystemsWordsAreTold) {
  const auto context = LoadTlsContext(
      {.certificate_path = "/nowhere/server.pem", .key_path = "/nowhere/server.key", .client_ca_path = ""});
  EXPECT_EQ(
      context.status().message(),
      "--tls-certificate: cannot read /nowhere/server.pem: No such file or directory; allowed: a regular file "
      "with a chain of certificates in PEM");
}

}  // namespace
}  // namespace kvblend::server
