#include "engine/prompt/text_boundary.h"

#include <string>

#include "gtest/gtest.h"

namespace kvblend::prompt {
namespace {

/// One letter per place between characters: 'p'aragraph, 's'entence, 'w'ord or '.'.
std::string Boundaries(std::string_view text) {
  std::string result;
  BoundaryScanner scanner(text);
  while (scanner.Next()) result += ".wsp"[static_cast<int>(scanner.boundary())];
  return result;
}

TEST(TextBoundaryTest, WordsSentencesParagraphs) {
  EXPECT_EQ(Boundaries("ab c"), "..w.");
  EXPECT_EQ(Boundaries("a. b"), "..s.");
  EXPECT_EQ(Boundaries("a.b "), "...w") << "a full stop inside a word ends nothing";
  EXPECT_EQ(Boundaries("a?  b"), "..ss.");
  EXPECT_EQ(Boundaries("a.\") b"), "....s.");
  EXPECT_EQ(Boundaries("a\") b"), "...w.");
  EXPECT_EQ(Boundaries("a\nb"), ".s.") << "a line ends like a sentence";
  EXPECT_EQ(Boundaries("a\n\nb"), ".sp.");
  EXPECT_EQ(Boundaries("a\r\n \r\n b"), ".wssspp.");
}

TEST(TextBoundaryTest, OtherScripts) {
  EXPECT_EQ(Boundaries("\xE4\xB8\x96\xE3\x80\x82\xE4\xB8\x96"), ".s.")
      << "no space after an ideographic stop";
  EXPECT_EQ(Boundaries("a\xC2\xA0"
                       "b\xE3\x80\x80"),
            ".w.w")
      << "no-break and ideographic space";
  EXPECT_EQ(Boundaries("a\xE2\x80\xA6\xE2\x80\x9D b"), "...s.");
}

TEST(TextBoundaryTest, SpaceAhead) {
  BoundaryScanner scanner("a  b");
  EXPECT_FALSE(scanner.before_space());
  ASSERT_TRUE(scanner.Next());
  EXPECT_TRUE(scanner.before_space());
  ASSERT_TRUE(scanner.Next() && scanner.Next());
  EXPECT_EQ(scanner.position(), 3u);
  EXPECT_FALSE(scanner.before_space());
  ASSERT_TRUE(scanner.Next());
  EXPECT_FALSE(scanner.before_space());
  EXPECT_FALSE(scanner.Next());
}

TEST(TextBoundaryTest, Characters) {
  const std::string text = "a\xF0\x9F\x98\x80z";
  for (const size_t inside : {2, 3, 4}) {
    EXPECT_EQ(FloorToCharacter(text, inside), 1u);
    EXPECT_EQ(CeilToCharacter(text, inside), 5u);
  }
  for (const size_t place : {0, 1, 5, 6}) {
    EXPECT_EQ(FloorToCharacter(text, place), place);
    EXPECT_EQ(CeilToCharacter(text, place), place);
  }
  EXPECT_EQ(FloorToCharacter(text, 100), 6u);
  EXPECT_EQ(CeilToCharacter(text, 100), 6u);
}

TEST(TextBoundaryTest, TheContentEndsBeforeBlanksOfAllKinds) {
  EXPECT_EQ(EndOfContent(""), 0);
  EXPECT_EQ(
      EndOfContent(" \t\r\n\v\f\xC2\x85\xC2\xA0\xE2\x80\xA8\xE2\x80\xA9\xE3\x80\x80\xE2\x80\x8B\xEF\xBB\xBF"),
      0);
  EXPECT_EQ(EndOfContent("ab"), 2);
  EXPECT_EQ(EndOfContent(" a \xC2\xA0"), 2);
  EXPECT_EQ(EndOfContent("\xE2\x82\xAC\f"), 3) << "a character of three bytes";
  // No characters: the rest of one, one that is cut off, and more of them than belong to one.
  for (const std::string text : {"\xA0", "\xC2", "\xE2\x80", "\xC2\xA0\xA0", "\xA0\xA0\xA0\xA0\xA0\xA0"}) {
    EXPECT_EQ(EndOfContent(text + " "), text.size());
  }
}

}  // namespace
}  // namespace kvblend::prompt
