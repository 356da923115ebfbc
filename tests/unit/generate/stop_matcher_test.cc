#include "engine/generate/stop_matcher.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace kvblend::generate {
namespace {

TEST(StopMatcherTest, ReleasesWhatCanBeginNoStopString) {
  struct Case {
    const char* what;
    std::vector<std::string> stop_strings;
    std::vector<std::pair<std::string, std::string>> pieces;  // pushed, released
    std::string flushed;
    std::string matched;  // empty: none
  };
  for (const Case& c : std::vector<Case>{
           {"no stop strings", {}, {{"abc", "abc"}, {"", ""}}, "", ""},
           {"a match across pieces is cut out",
            {"STOP"},
            {{"go S", "go "}, {"TO", ""}, {"P now", ""}, {"more", ""}},
            "",
            "STOP"},
           {"a beginning that comes to nothing",
            {"STOP"},
            {{"STO", ""}, {"STO", "STO"}, {"x", "STOx"}, {"S", ""}},
            "S",
            ""},
           {"overlapping beginnings", {"aab"}, {{"aaa", "a"}, {"ab", "a"}}, "", "aab"},
           {"the first complete match", {"abcd", "bc"}, {{"xabcd", "xa"}}, "", "bc"},
           {"then the longest", {"c", "abc", "bc"}, {{"xabc", "x"}}, "", "abc"},
           {"empty strings are ignored", {"", "b"}, {{"aab", "aa"}}, "", "b"},
       }) {
    SCOPED_TRACE(c.what);
    StopMatcher matcher(c.stop_strings);
    for (const auto& [pushed, released] : c.pieces) EXPECT_EQ(matcher.Push(pushed), released);
    EXPECT_EQ(matcher.Flush(), c.flushed);
    EXPECT_EQ(matcher.matched(), !c.matched.empty());
    EXPECT_EQ(matcher.matched_string(), c.matched);
  }
}

TEST(StopMatcherTest, CopiesAreIndependent) {
  StopMatcher matcher({"ab"});
  EXPECT_EQ(matcher.Push("a"), "");
  StopMatcher copy = matcher;
  EXPECT_EQ(copy.Push("b"), "");
  EXPECT_EQ(copy.matched_string(), "ab");
  EXPECT_EQ(matcher.Push("c"), "ac");
}

struct Found {
  std::string before;
  std::string stop_string;  // empty: none
};

/// By definition: the first end at which any stop string is complete, and the longest of those.
Found NaiveSearch(const std::string& text, const std::vector<std::string>& stop_strings) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stop_strings) {
      const bool here = stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (here && stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

/// How much of the end of `text` may begin a stop string.
size_t Undecided(const std::string& text, const std::vector<std::string>& stop_strings) {
  for (size_t length = text.size(); length > 0; --length) {
    for (const std::string& stop : stop_strings) {
      if (length < stop.size() && text.compare(text.size() - length, length, stop, 0, length) == 0)
        return length;
    }
  }
  return 0;
}

bool EndsInsideACharacter(const std::string& text, size_t position) {
  return position < text.size() && (static_cast<unsigned char>(text[position]) & 0xC0) == 0x80;
}

TEST(StopMatcherTest, RandomTextsAndSplitsAgreeWithNaiveSearch) {
  // Few letters, so that overlaps abound; the last four share their first byte or more.
  const std::vector<std::string> letters = {"a", "b", "c", "é", "è", "😀", "😁"};
  int matches = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const size_t alphabet = 1 + random() % letters.size();
    const auto random_text = [&](size_t most) {
      std::string text;
      for (size_t i = random() % (most + 1); i > 0; --i) {
        text += letters[(letters.size() - alphabet) + random() % alphabet];
      }
      return text;
    };
    std::vector<std::string> stop_strings(random() % 5);
    for (std::string& stop : stop_strings) {
      while (stop.empty()) stop = random_text(seed % 2 == 0 ? 4 : 8);
    }
    const std::string text = random_text(60);
    const Found expected = NaiveSearch(text, stop_strings);

    StopMatcher matcher(stop_strings);
    std::string delivered;
    size_t pushed = 0;
    while (pushed < text.size() && !matcher.matched()) {
      size_t end = std::min(text.size(), pushed + random() % 6);
      while (EndsInsideACharacter(text, end)) ++end;
      delivered += matcher.Push(text.substr(pushed, end - pushed));
      pushed = end;
      EXPECT_FALSE(EndsInsideACharacter(text, delivered.size()));
      if (!matcher.matched()) {
        EXPECT_EQ(delivered.size(), pushed - Undecided(text.substr(0, pushed), stop_strings));
      }
    }
    delivered += matcher.Flush();
    ASSERT_EQ(delivered, expected.before);
    ASSERT_EQ(matcher.matched_string(), expected.stop_string);
    matches += matcher.matched() ? 1 : 0;
  }
  EXPECT_GT(matches, 1000);
  EXPECT_LT(matches, 3500);
}

}  // namespace
}  // namespace kvblend::generate
