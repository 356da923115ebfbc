#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/store/disk/disk_health.h"
#include "engine/store/disk/file_system.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/store_disk/disk_tier_fixture.h"

namespace kvblend::store {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class PosixFileSystemTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  absl::Status Write(const std::string& name, const std::vector<std::byte>& bytes) {
    const auto file = fs_.Open(Path(name), OpenMode::kCreate);
    if (!file.ok()) return file.status();
    return WriteFully(**file, 0, bytes);
  }
  void WriteText(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::string ReadText(const std::string& name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const test_support::TemporaryFolder folder_;
  FileSystem& fs_ = PosixFileSystem();
};

TEST_F(PosixFileSystemTest, WritesAndReads) {
  std::vector<std::byte> bytes(10000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  {
    const auto file = *fs_.Open(Path("a"), OpenMode::kCreate);
    ASSERT_TRUE(WriteFully(*file, 0, absl::MakeConstSpan(bytes).subspan(0, 6000)).ok());
    ASSERT_TRUE(WriteFully(*file, 6000, absl::MakeConstSpan(bytes).subspan(6000)).ok());
    ASSERT_TRUE(file->Sync().ok());
    EXPECT_EQ(*file->Size(), 10000);
  }
  for (const OpenMode mode : {OpenMode::kRead, OpenMode::kReadDirect}) {
    const auto file = *fs_.Open(Path("a"), mode);
    EXPECT_EQ(file->path(), Path("a"));
    EXPECT_GE(file->descriptor(), 0);
    const PageBuffer buffer(8192);
    ASSERT_TRUE(ReadFully(*file, 0, buffer.bytes()).ok());
    EXPECT_TRUE(std::equal(buffer.bytes().begin(), buffer.bytes().end(), bytes.begin()));
    EXPECT_TRUE(absl::IsDataLoss(ReadFully(*file, 4096, buffer.bytes())));
    EXPECT_EQ(*file->ReadAt(8192, buffer.bytes()), 10000 - 8192);
    EXPECT_EQ(*file->ReadAt(12288, buffer.bytes()), 0);
  }
}

TEST_F(PosixFileSystemTest, NamesCanBeMadeChangedAndRemoved) {
  ASSERT_TRUE(Write("a", {std::byte{1}}).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Write("a", {})));
  ASSERT_TRUE(Write("b", {std::byte{2}}).ok());
  ASSERT_TRUE(fs_.MakeFolder(Path("folder")).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(fs_.MakeFolder(Path("folder"))));
  ASSERT_EQ(symlink("a", Path("link").c_str()), 0);
  std::vector<std::string> names;
  const std::vector<FolderItem> items = *fs_.List(folder_.path());
  for (const FolderItem& item : items) {
    names.push_back(item.name);
    EXPECT_EQ(item.is_folder, item.name == "folder");
    EXPECT_EQ(item.is_file, item.name == "a" || item.name == "b");
  }
  EXPECT_THAT(names, UnorderedElementsAre("a", "b", "folder", "link"));
  EXPECT_FALSE(fs_.Open(Path("link"), OpenMode::kRead).ok()) << "links are not followed";

  ASSERT_TRUE(fs_.Rename(Path("a"), Path("b")).ok());
  ASSERT_TRUE(fs_.SyncFolder(folder_.path()).ok());
  const auto file = *fs_.Open(Path("b"), OpenMode::kRead);
  ASSERT_TRUE(fs_.Unlink(Path("b")).ok());
  std::byte byte{};
  ASSERT_TRUE(ReadFully(*file, 0, absl::MakeSpan(&byte, 1)).ok());
  EXPECT_EQ(byte, std::byte{1});
  EXPECT_TRUE(absl::IsNotFound(fs_.Unlink(Path("b"))));
  EXPECT_TRUE(absl::IsNotFound(fs_.Open(Path("b"), OpenMode::kRead).status()));
  EXPECT_TRUE(absl::IsNotFound(fs_.Rename(Path("b"), Path("c"))));
  EXPECT_TRUE(absl::IsNotFound(fs_.List(Path("c")).status()));
  EXPECT_GT(fs_.SpaceOf(folder_.path())->total_bytes, 0);
}

TEST_F(PosixFileSystemTest, ErrorsNameOperationPathAndReason) {
  const absl::Status missing = fs_.Open(Path("missing"), OpenMode::kReadDirect).status();
  EXPECT_EQ(missing.message(), Path("missing") + ": open failed: No such file or directory");
  ASSERT_TRUE(Write("file", {}).ok());
  EXPECT_EQ(fs_.List(Path("file")).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PosixFileSystemTest, MakesFoldersOnTheWay) {
  ASSERT_TRUE(MakeFolders(fs_, Path("a/b/c")).ok());
  ASSERT_TRUE(MakeFolders(fs_, Path("a/b/c")).ok());
  EXPECT_TRUE(fs_.List(Path("a/b/c"))->empty());
  ASSERT_TRUE(Write("file", {}).ok());
  EXPECT_FALSE(MakeFolders(fs_, Path("file/b")).ok());
}

TEST_F(PosixFileSystemTest, ALockHasOneHolder) {
  auto lock = fs_.Lock(Path("lock"), "process 123");
  ASSERT_TRUE(lock.ok());
  const absl::Status refused = fs_.Lock(Path("lock"), "process 456").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr(Path("lock")));
  EXPECT_THAT(refused.message(), HasSubstr("process 123"));
  lock->reset();
  EXPECT_TRUE(fs_.Lock(Path("lock"), "process 456").ok());
}

TEST_F(PosixFileSystemTest, AFileThatIsNoLockStaysAsItIs) {
  const std::string text = "packages:\n  - name: of somebody's lock file";
  WriteText("lock", text);
  const absl::Status refused = fs_.Lock(Path("lock"), "process 123").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr(Path("lock")));
  EXPECT_THAT(refused.message(), HasSubstr("begins with 'packages:'"));
  EXPECT_EQ(ReadText("lock"), text);
}

TEST_F(PosixFileSystemTest, ALockThatWasCutShortIsTaken) {
  for (const std::string& text : {std::string(), std::string("proc"), std::string(11, '\0')}) {
    WriteText("lock", text);
    EXPECT_TRUE(fs_.Lock(Path("lock"), "process 123").ok()) << text;
    EXPECT_EQ(ReadText("lock"), "process 123");
  }
}

TEST(DiskHealthTest, OneLinePerChange) {
  using internal::DiskHealth;
  std::ostringstream out;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(out)));
  DiskHealth health("writing to", "/chunks");
  const auto lines = [&] {
    const std::string text = out.str();
    out.str("");
    return text;
  };
  health.Report(absl::OkStatus());
  EXPECT_EQ(lines(), "");
  health.Report(absl::ResourceExhaustedError("no space"));
  EXPECT_THAT(lines(), HasSubstr("/chunks is full"));
  health.Report(absl::ResourceExhaustedError("no space"));
  EXPECT_EQ(lines(), "");
  EXPECT_EQ(health.state(), DiskHealth::State::kFull);
  health.Report(absl::InternalError("broken"));
  EXPECT_THAT(lines(), HasSubstr("writing to /chunks fails"));
  health.Report(absl::UnavailableError("broken"));
  EXPECT_EQ(lines(), "");
  EXPECT_EQ(health.state(), DiskHealth::State::kFailing);
  health.Report(absl::OkStatus());
  EXPECT_THAT(lines(), HasSubstr("writing to /chunks works again, after 4 failures"));
  spdlog::set_default_logger(before);
}

TEST_F(PosixFileSystemTest, TellsWhichFoldersItMayWriteTo) {
  const std::string closed = Path("closed"), open = Path("open");
  ASSERT_EQ(mkdir(closed.c_str(), 0755), 0);
  ASSERT_EQ(mkdir(open.c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(closed.c_str(), 0555), 0);
  ASSERT_EQ(chmod(open.c_str(), 0777), 0);
  EXPECT_EQ(fs_.CheckWritable(Path("none")).code(), absl::StatusCode::kNotFound);
  const uid_t user = geteuid();
  // Root may do everything.
  if (user == 0 && seteuid(65534) != 0) GTEST_SKIP() << "no right to be another user than root";
  const absl::Status of_closed = fs_.CheckWritable(closed), of_open = fs_.CheckWritable(open);
  ASSERT_EQ(seteuid(user), 0);
  EXPECT_EQ(of_closed.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(of_closed.message(), HasSubstr(closed));
  EXPECT_TRUE(of_open.ok()) << of_open;
}

}  // namespace
}  // namespace kvblend::store
