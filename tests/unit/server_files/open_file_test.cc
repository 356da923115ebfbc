// Whatever a path names is opened, or refused by its name, without waiting for ever.
#include "server/files/open_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::server {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kShort = absl::Milliseconds(1);

class OpenFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string File(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name)) << content;
    return Path(name);
  }
  std::string Pipe(const std::string& name) const {
    EXPECT_EQ(mkfifo(Path(name).c_str(), 0600), 0);
    return Path(name);
  }
  std::string Loop(const std::string& name) const {
    std::filesystem::create_symlink(name, Path(name));
    return Path(name);
  }
  std::string Socket(const std::string& name) {
    socket_ = Descriptor(socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, Path(name).c_str());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return Path(name);
  }

  static void ExpectUnreadable(const std::string& path, Allowed allowed, const std::string& why) {
    const absl::Status status = ReadNamed(path, allowed, /*max_bytes=*/1 << 20, kShort).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(std::string(status.message()), absl::StrCat("cannot read ", path, ": ", why));
  }
  static void ExpectUnwritable(const std::string& path, const std::string& why) {
    const absl::Status status = OpenToWrite(path, kShort).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(std::string(status.message()), absl::StrCat("cannot write ", path, ": ", why));
  }

  const test_support::TemporaryFolder folder_;
  Descriptor socket_;
};

TEST_F(OpenFileTest, FilesAreReadAndTheirAbsenceIsTold) {
  const std::string file = File("file", "content");
  for (const Allowed allowed : {Allowed::kFile, Allowed::kFileOrStream}) {
    EXPECT_EQ(ReadNamed(file, allowed).value(), "content");
    EXPECT_EQ(ReadNamed(file, allowed, 7).value(), "content");
    ExpectUnreadable(Path(""), allowed,
                     absl::StrCat("it is a folder; allowed: a regular file",
                                  allowed == Allowed::kFile ? "" : ", or a pipe that is written to"));
  }
  EXPECT_THAT(std::string(ReadNamed(file, Allowed::kFile, 6).status().message()),
              HasSubstr("it has more than 6 bytes"));
  EXPECT_EQ(ReadNamed(Path("none"), Allowed::kFile).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(OpenFileTest, WhatIsNoFileIsNamed) {
  const std::string pipe = Pipe("pipe"), loop = Loop("loop"), socket = Socket("socket");
  ExpectUnreadable(pipe, Allowed::kFile, "it is a pipe; allowed: a regular file");
  ExpectUnreadable("/dev/zero", Allowed::kFile, "it is a device; allowed: a regular file");
  ExpectUnreadable(socket, Allowed::kFile, "it is a socket; allowed: a regular file");
  ExpectUnreadable(loop, Allowed::kFile, "its links lead in a circle; allowed: a regular file");
  ExpectUnreadable(loop, Allowed::kFileOrStream,
                   "its links lead in a circle; allowed: a regular file, or a pipe that is written to");
}

TEST_F(OpenFileTest, OfADeviceNoMoreIsReadThanIsAllowed) {
  ExpectUnreadable("/dev/zero", Allowed::kFileOrStream, "it has more than 1048576 bytes");
  EXPECT_EQ(ReadNamed("/dev/null", Allowed::kFileOrStream).value(), "");
}

TEST_F(OpenFileTest, APipeThatNobodyWritesToIsRefused) {
  const std::string pipe = Pipe("pipe");
  ExpectUnreadable(
      pipe, Allowed::kFileOrStream,
      "it is a pipe that nobody writes to; allowed: a regular file, or a pipe that is written to");
}

TEST_F(OpenFileTest, AWriterMayTakeItsTime) {
  const std::string pipe = Pipe("pipe");
  const Descriptor kept(open(pipe.c_str(), O_RDWR));  // the reader may come first
  Descriptor writer(open(pipe.c_str(), O_WRONLY));
  absl::StatusOr<Descriptor> opened = absl::UnknownError("not yet");
  std::thread reader([&] { opened = OpenToRead(pipe, Allowed::kFileOrStream, absl::ZeroDuration()); });
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();  // so that it has found nothing yet, most often
  ASSERT_TRUE(WriteAll(writer, pipe, "something").ok());
  reader.join();
  ASSERT_TRUE(opened.ok()) << opened.status();
  char text[16] = {};
  EXPECT_EQ(read(opened->get(), text, sizeof text), 9);
}

TEST_F(OpenFileTest, AWriterThatComesLaterIsWaitedFor) {
  const std::string pipe = Pipe("pipe");
  std::thread writer([&] {
    const auto file = OpenToWrite(pipe, absl::Minutes(1));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(WriteAll(*file, pipe, std::string(1 << 20, 'x')).ok());
  });
  EXPECT_EQ(ReadNamed(pipe, Allowed::kFileOrStream, 1 << 20, absl::Minutes(1)).value().size(), 1 << 20);
  writer.join();
}

// As the shell makes one of <(command).
TEST_F(OpenFileTest, APipeWhoseWriterHasGoneIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  const std::string path = absl::StrCat("/dev/fd/", reader.get());
  ASSERT_TRUE(WriteAll(writer, path, "all of it").ok());
  writer = Descriptor();
  EXPECT_EQ(ReadNamed(path, Allowed::kFileOrStream, 1 << 20, kShort).value(), "all of it");
}

TEST_F(OpenFileTest, WhatIsWrittenReplacesAFileAndGoesIntoAPipe) {
  const std::string file = File("file", "what was there before"), made = Path("made"), pipe = Pipe("pipe");
  for (const std::string& path : {file, made}) {
    const auto opened = OpenToWrite(path, kShort);
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(WriteAll(*opened, path, "new").ok());
    EXPECT_EQ(ReadNamed(path, Allowed::kFile).value(), "new");
  }
  ExpectUnwritable(pipe, "it is a pipe that nobody reads; allowed: a file, or a pipe that is read");
  const Descriptor reader(open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  const auto opened = OpenToWrite(pipe, kShort);
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(WriteAll(*opened, pipe, "new").ok());
  char text[4] = {};
  EXPECT_EQ(read(reader.get(), text, sizeof text), 3);
  ExpectUnwritable(Path(""), "Is a directory");
  ExpectUnwritable(Loop("loop"), "its links lead in a circle");
  ExpectUnwritable(Socket("socket"), "it is a socket; allowed: a file, or a pipe that is read");
  const auto full = OpenToWrite("/dev/full");
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(WriteAll(*full, "/dev/full", "x"),  // no mistake of who gave the path
            absl::FailedPreconditionError("cannot write /dev/full: No space left on device"));
}

TEST_F(OpenFileTest, AFirstLineIsReadAndNoMore) {
  const auto line_of = [](const std::string& path) { return ReadFirstLine(path, 8, "a word", kShort); };
  EXPECT_EQ(*line_of(File("one", "secret")), "secret");
  EXPECT_EQ(*line_of(File("more", "secret\r\nmore\n")), "secret");
  EXPECT_EQ(*line_of(File("most", "12345678\nmore")), "12345678");
  EXPECT_EQ(*line_of(File("empty", "\nmore")), "");
  EXPECT_EQ(*line_of("/dev/null"), "");
  for (const std::string& path : {File("longer", "123456789\n"), std::string("/dev/zero")}) {
    EXPECT_EQ(line_of(path).status(),
              absl::InvalidArgumentError(absl::StrCat(
                  "cannot read ", path, ": its first line has more than 8 bytes; allowed: a word")));
  }
  const std::string pipe = Pipe("pipe");
  const Descriptor writer(open(pipe.c_str(), O_RDWR));  // which stays open
  ASSERT_EQ(write(writer.get(), "secret\n", 7), 7);
  EXPECT_EQ(*line_of(pipe), "secret");
  EXPECT_THAT(std::string(line_of(Pipe("unwritten")).status().message()), HasSubstr("nobody writes to"));
}

TEST_F(OpenFileTest, NothingButAFileIsReplacedByRenaming) {
  EXPECT_TRUE(CheckReplaceable("--output", File("file", "")).ok());
  EXPECT_TRUE(CheckReplaceable("--output", Path("none")).ok());
  const std::pair<std::string, const char*> others[] = {{Pipe("pipe"), "is a pipe"},
                                                        {"/dev/null", "is a device"},
                                                        {Path(""), "is a folder"},
                                                        {Loop("loop"), "is a link in a circle"}};
  for (const auto& [path, what] : others) {
    const absl::Status status = CheckReplaceable("--output", path);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(std::string(status.message()), absl::StrCat("--output is ", path, ", which ", what,
                                                          "; allowed: a regular file, or a new name"));
  }
}

}  // namespace
}  // namespace kvblend::server
