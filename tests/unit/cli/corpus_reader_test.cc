// Documents out of folders and files; whatever is no document is named, and the rest goes on.
#include "server/cli/precompute/corpus_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace kvblend::server::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CorpusReaderTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "docs" / "deep"); }

  std::string File(const std::string& name, std::string_view content) {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

  /// "name: text" of every document; bad_ has what was bad.
  std::vector<std::string> Read(CorpusReader::Options options) {
    std::vector<std::string> documents;
    auto reader = CorpusReader::Open(std::move(options), [&](const absl::Status& what, int64_t bytes) {
      bad_.emplace_back(what.message());
      seen_bytes_ += bytes;
      return on_bad_;
    });
    EXPECT_TRUE(reader.ok()) << reader.status();
    if (!reader.ok()) return documents;
    total_bytes_ = reader->total_bytes();
    ignored_ = reader->num_ignored_files();
    while (true) {
      auto document = reader->Next();
      status_ = document.status();
      if (!document.ok() || !document->has_value()) break;
      seen_bytes_ += (*document)->input_bytes;
      documents.push_back((*document)->Name().substr(folder_.string().size() + 1) + ": " + (*document)->text);
    }
    return documents;
  }

  const test_support::TemporaryFolder temporary_folder_;
  const std::filesystem::path folder_ = temporary_folder_.path();
  std::vector<std::string> bad_;
  absl::Status on_bad_;
  absl::Status status_;
  int64_t total_bytes_ = 0;
  int64_t seen_bytes_ = 0;
  int64_t ignored_ = 0;
};

TEST_F(CorpusReaderTest, FoldersInOrderOfNames) {
  File("docs/b.txt", "B");
  File("docs/a.md", "A\n");
  File("docs/deep/c.TXT", "C");
  File("docs/deep/picture.png", "no text");
  const std::string named = File("other.rst", "named, so read");
  EXPECT_THAT(
      Read({.paths = {(folder_ / "docs").string(), named}}),
      ElementsAre("docs/a.md: A\n", "docs/b.txt: B", "docs/deep/c.TXT: C", "other.rst: named, so read"));
  EXPECT_THAT(bad_, IsEmpty());
  EXPECT_EQ(ignored_, 1);
  EXPECT_EQ(seen_bytes_, total_bytes_);
  EXPECT_EQ(total_bytes_, 1 + 2 + 1 + 14);
}

TEST_F(CorpusReaderTest, APipeInAFolderIsNotWaitedForWheneverItCameThere) {
  File("docs/a.txt", "A");
  ASSERT_EQ(mkfifo((folder_ / "docs" / "b.txt").c_str(), 0644), 0);
  ASSERT_EQ(mkfifo((folder_ / "docs" / "c.jsonl").c_str(), 0644), 0);
  File("docs/d.jsonl", "\"D\"");
  auto reader =
      CorpusReader::Open({.paths = {(folder_ / "docs").string()}}, [&](const absl::Status& what, int64_t) {
        bad_.push_back(std::string(what.message()));
        return absl::OkStatus();
      });
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::filesystem::remove(folder_ / "docs" / "d.jsonl");
  ASSERT_EQ(mkfifo((folder_ / "docs" / "d.jsonl").c_str(), 0644), 0);
  EXPECT_EQ((*reader->Next())->text, "A");
  EXPECT_FALSE(reader->Next()->has_value());
  EXPECT_THAT(bad_, ElementsAre(HasSubstr("b.txt: it is a pipe; allowed: a regular file"),
                                HasSubstr("c.jsonl: it is a pipe"), HasSubstr("d.jsonl: it is a pipe")));
}

TEST_F(CorpusReaderTest, JsonLines) {
  const std::string path = File("c.jsonl",
                                "{\"id\": \"x\", \"text\": \"one\"}\r\n"
                                "\n"
                                "\"two\"\n"
                                "{\"text\": \"three\", \"id\": 7, \"more\": [1]}\n"
                                "{\"text\": \"fo\\u00fcr\\n\", \"id\": 1.5}");
  EXPECT_THAT(Read({.paths = {path}}), ElementsAre("c.jsonl#x: one", "c.jsonl#line 3: two",
                                                   "c.jsonl#7: three", "c.jsonl#line 5: fo\xC3\xBCr\n"));
  EXPECT_THAT(bad_, IsEmpty());
  const std::string other = File("d.jsonl", "{\"body\": \"B\", \"key\": \"k\", \"text\": \"T\"}\n");
  EXPECT_THAT(Read({.paths = {other}, .text_field = "body", .id_field = "key"}), ElementsAre("d.jsonl#k: B"));
}

TEST_F(CorpusReaderTest, AByteOrderMarkIsNoPartOfTheText) {
  const std::string marked = File("docs/a.txt", "\xEF\xBB\xBFmarked"), plain = File("docs/b.txt", "plain");
  File("docs/c.jsonl", "\xEF\xBB\xBF\"one\"\n{\"text\": \"\\ufefftwo\"}\n");
  File("docs/d.txt", "\xEF\xBB\xBF\n");
  EXPECT_THAT(Read({.paths = {(folder_ / "docs").string()}}),
              ElementsAre("docs/a.txt: marked", "docs/b.txt: plain", "docs/c.jsonl#line 1: one",
                          "docs/c.jsonl#line 2: two"));
  EXPECT_THAT(bad_, ElementsAre(HasSubstr("d.txt: is nothing but white space")));
  EXPECT_EQ(seen_bytes_, total_bytes_);
  // Places are told as they are in the file.
  auto reader =
      CorpusReader::Open({.paths = {marked, plain}}, [](const auto&, int64_t) { return absl::OkStatus(); });
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader->Next())->begin_byte, 3);
  EXPECT_EQ((*reader->Next())->begin_byte, 0);
}

TEST_F(CorpusReaderTest, ALineWithoutAnEndIsNotReadForEver) {
  const std::string first = File("a.jsonl", "\"123456\"\n\"1234567\"\n\"last\"\n");
  const std::string endless = (folder_ / "b.jsonl").string();
  std::filesystem::create_symlink("/dev/zero", endless);
  EXPECT_THAT(Read({.paths = {first, endless, File("c.txt", "good")}, .max_line_bytes = 9}),
              ElementsAre("a.jsonl#line 1: 123456", "c.txt: good"));
  EXPECT_THAT(
      bad_, ElementsAre(HasSubstr("a.jsonl line 2: has more than 9 bytes; the rest of the file is not read"),
                        HasSubstr("b.jsonl line 1: has more than 9 bytes")));
}

TEST_F(CorpusReaderTest, BadInputsAreNamedWithTheirLineAndSkipped) {
  File("docs/a_binary.txt", std::string_view("text\0more", 9));
  File("docs/b_latin.txt", "fine\nna\xEFve\n");
  File("docs/c_empty.txt", "");
  File("docs/d_blank.md", " \n\t\n");
  File("docs/e_good.txt", "good");
  File("docs/f.jsonl",
       "{\"text\": \"good\"}\n{\"text\": 1}\n{broken\n[1]\n\"\"\n{\"text\": "
       "\"\\u0000\"}\n\"\xFF\"\n\"last\"\n");
  File("docs/g.jsonl", "");
  EXPECT_THAT(Read({.paths = {(folder_ / "docs").string()}}),
              ElementsAre("docs/e_good.txt: good", "docs/f.jsonl#line 1: good", "docs/f.jsonl#line 8: last"));
  EXPECT_THAT(
      bad_, ElementsAre(AllOf(HasSubstr("a_binary.txt"), HasSubstr("byte 4 is zero")),
                        AllOf(HasSubstr("b_latin.txt"), HasSubstr("line 2 is not valid UTF-8, at byte 7")),
                        AllOf(HasSubstr("c_empty.txt"), HasSubstr("is empty")),
                        AllOf(HasSubstr("d_blank.md"), HasSubstr("nothing but white space")),
                        AllOf(HasSubstr("f.jsonl line 2"), HasSubstr("no string \"text\"")),
                        AllOf(HasSubstr("f.jsonl line 3"), HasSubstr("no JSON")),
                        AllOf(HasSubstr("f.jsonl line 4"), HasSubstr("neither a JSON string nor an object")),
                        AllOf(HasSubstr("f.jsonl line 5"), HasSubstr("is empty")),
                        AllOf(HasSubstr("f.jsonl line 6"), HasSubstr("is binary")),
                        AllOf(HasSubstr("f.jsonl line 7"), HasSubstr("not valid UTF-8, at byte 1")),
                        AllOf(HasSubstr("g.jsonl"), HasSubstr("is empty"))));
  EXPECT_EQ(seen_bytes_, total_bytes_);
}

TEST_F(CorpusReaderTest, WhatCannotBeReadIsNamed) {
  // Whoever runs the tests may read everything, but not a line as a folder.
  std::filesystem::create_directories(folder_ / "docs" / "folder.txt");
  const std::string pipe = (folder_ / "docs" / "gone.txt").string();
  ASSERT_EQ(symlink("/no/such/file", pipe.c_str()), 0);
  File("docs/good.md", "good");
  EXPECT_THAT(Read({.paths = {(folder_ / "docs").string()}}), ElementsAre("docs/good.md: good"));
  EXPECT_THAT(bad_, ElementsAre(AllOf(HasSubstr("gone.txt"), HasSubstr("No such file"))));
}

TEST_F(CorpusReaderTest, LinksInCirclesEnd) {
  ASSERT_EQ(symlink((folder_ / "docs").c_str(), (folder_ / "docs" / "deep" / "up").c_str()), 0);
  File("docs/deep/a.txt", "A");
  EXPECT_THAT(Read({.paths = {(folder_ / "docs").string()}}), ElementsAre("docs/deep/a.txt: A"));
  EXPECT_THAT(bad_, IsEmpty());
}

TEST_F(CorpusReaderTest, LinksToFoldersAreFollowedAndEachFolderIsReadOnce) {
  const std::filesystem::path docs = folder_ / "docs", elsewhere = folder_ / "elsewhere";
  std::filesystem::create_directories(elsewhere / "more");
  File("docs/deep/a.txt", "A");
  File("elsewhere/b.txt", "B");
  File("elsewhere/more/c.md", "C");
  std::filesystem::create_directory_symlink(docs / "deep", docs / "a_second_name");
  std::filesystem::create_directory_symlink(elsewhere, docs / "b_link");
  std::filesystem::create_directory_symlink(elsewhere, docs / "c_link");
  std::filesystem::create_directory_symlink(docs, elsewhere / "back");
  EXPECT_THAT(Read({.paths = {docs.string()}}),
              ElementsAre("docs/b_link/b.txt: B", "docs/b_link/more/c.md: C", "docs/deep/a.txt: A"));
  EXPECT_THAT(
      Read({.paths = {(docs / "b_link").string(), docs.string()}}),
      ElementsAre("docs/b_link/b.txt: B", "docs/b_link/back/deep/a.txt: A", "docs/b_link/more/c.md: C"));
  EXPECT_THAT(bad_, IsEmpty());
}

TEST_F(CorpusReaderTest, WhoeverIsToldMayEndIt) {
  File("docs/a.txt", "");
  File("docs/b.txt", "B");
  on_bad_ = absl::AbortedError("stop");
  EXPECT_THAT(Read({.paths = {(folder_ / "docs").string()}}), IsEmpty());
  EXPECT_EQ(status_.code(), absl::StatusCode::kAborted);
}

TEST_F(CorpusReaderTest, APathThatIsNotThereIsAMistake) {
  const auto reader = CorpusReader::Open({.paths = {(folder_ / "docs").string(), "/no/such/file"}},
                                         [](const absl::Status&, int64_t) { return absl::OkStatus(); });
  EXPECT_EQ(reader.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace kvblend::server::cli
