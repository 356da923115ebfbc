// Texts that come from files: which bytes of a file are the text, whatever command reads it.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/files.h"
#include "tests/unit/cli/commands_fixture.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TextFilesTest : public CommandsTest {};

TEST_F(TextFilesTest, OneNewlineAtTheEndOfAFlagsTextIsNoPartOfIt) {
  const auto text_of = [&](const std::string& content) {
    return ReadFlagText(File("flag.txt", content)).value();
  };
  EXPECT_EQ(text_of("Passages:\n"), "Passages:");
  EXPECT_EQ(text_of("Passages:\n\n\n"), "Passages:\n\n") << "further ones are meant";
  EXPECT_EQ(text_of("Passages:\r\n"), "Passages:");
  EXPECT_EQ(text_of("Passages:\r"), "Passages:\r");
  EXPECT_EQ(text_of("a\nb"), "a\nb");
  EXPECT_EQ(text_of("\xEF\xBB\xBFmarked\n"), "marked");
  EXPECT_EQ(text_of("\n"), "");
  EXPECT_EQ(text_of(""), "");
}

TEST_F(TextFilesTest, FlagsFromFilesSayTheSameAsFlags) {
  const std::string document = File("a.txt", "text");
  const std::string system = File("system.txt", "Answer briefly.\n");
  const std::string lead_in = File("lead_in.txt", "Passages:\n");
  EXPECT_EQ(Run({"precompute", document, "--system-file", system, "--lead-in-file", lead_in}), 0);
  EXPECT_EQ(calls_.put.at(0).system_text(), "Answer briefly.");
  EXPECT_EQ(calls_.put.at(0).lead_in(), "Passages:");
  EXPECT_EQ(calls_.split.at(0).system_text(), "Answer briefly.");
  EXPECT_EQ(Run({"score", "--question", "Q", "--continuation-file", File("answer.txt", "Paris\n")}), 0);
  EXPECT_EQ(calls_.scored.at(0).continuation_text(), "Paris");
}

TEST_F(TextFilesTest, AFileOfAChunkIsTheSameChunkForEveryCommand) {
  const std::string file = File("a.txt", "\xEF\xBB\xBFHello.\n");
  const std::string lines = File("a.jsonl", "\"\\ufeffHello.\\n\"\n");
  EXPECT_EQ(Run({"chunks", "put", file, "--jsonl", lines}), 0);
  EXPECT_THAT(calls_.put.at(0).chunks(), ElementsAre("Hello.\n", "Hello.\n"));
  EXPECT_EQ(Run({"generate", "--question", "Q", "--chunk-file", file}), 0);
  EXPECT_THAT(calls_.generated.at(0).prompt().chunks(), ElementsAre("Hello.\n"));
  calls_.stored.clear();
  EXPECT_EQ(Run({"precompute", file, lines}), 0);
  EXPECT_THAT(calls_.put.at(1).chunks(), ElementsAre("Hello.\n", "Hello.\n"));
  EXPECT_THAT(calls_.put.at(1).chunk_labels(), ElementsAre(file + "@3", lines + "#line 1@3"));
}

TEST_F(TextFilesTest, ThatALabelStaysIsSaid) {
  const std::string file = File("a.txt", "Hello."), other = File("b.txt", "Something else.");
  EXPECT_EQ(Run({"chunks", "put", file, "--label", "old"}), 0);
  EXPECT_THAT(Err(), testing::Not(HasSubstr("another label")));
  calls_.stored["key-anchored-6"].set_label("old");
  EXPECT_EQ(Run({"chunks", "put", file, other, "--label", "old"}), 0);
  EXPECT_THAT(Err(), testing::Not(HasSubstr("another label")));
  EXPECT_EQ(Run({"chunks", "put", file, "--label", "new"}), 0);
  EXPECT_THAT(Err(),
              HasSubstr("1 chunk was there already with another label, which stays: key-anchored-6 has "
                        "\"old\""));
  EXPECT_EQ(Run({"chunks", "put", file}), 0);
  EXPECT_THAT(Err(), testing::Not(HasSubstr("another label"))) << "none was given";
}

}  // namespace
}  // namespace kvblend::server::cli
