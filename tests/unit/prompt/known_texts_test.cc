#include "engine/prompt/split/known_texts.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/prompt/split/text_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::prompt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<std::string> kOwn = {"own"};

std::string Passage(int number) {
  std::string text = absl::StrCat("Passage ", number, " ");
  while (text.size() < 100) absl::StrAppend(&text, "tells of ", number * 7919 % 1000, "; ");
  return text;
}

/// Leftmost, then longest, by comparing every known text with every place.
std::vector<TextRange> FindNaively(const std::set<std::string>& known, const std::string& text) {
  std::vector<TextRange> found;
  for (size_t begin = 0; begin < text.size();) {
    size_t longest = 0;
    for (const std::string& one : known) {
      if (one.size() >= KnownTexts::kMinBytes && text.compare(begin, one.size(), one) == 0) {
        longest = std::max(longest, one.size());
      }
    }
    if (longest > 0) found.push_back({begin, begin + longest});
    begin += std::max<size_t>(longest, 1);
  }
  return found;
}

TEST(TextHashTest, PartsHaveTheHashesOfThemselves) {
  std::mt19937 random(1);
  std::string text(1000, ' ');
  for (char& byte : text) byte = static_cast<char>(random());
  const uint64_t base = TextHash::RandomBase();
  const TextHash all(text, base);
  for (int i = 0; i < 500; ++i) {
    size_t begin = random() % 1001, end = random() % 1001;
    if (begin > end) std::swap(begin, end);
    const std::string part = text.substr(begin, end - begin);
    EXPECT_EQ(all.Of(begin, end), TextHash(part, base).Of(0, part.size())) << begin << " " << end;
  }
  RollingHash rolling(text, 32, base);
  do {
    ASSERT_EQ(rolling.value(), all.Of(rolling.begin(), rolling.begin() + 32));
  } while (rolling.Next());
  EXPECT_EQ(rolling.begin(), text.size() - 32);
}

TEST(TextHashTest, ProductsAreModuloThePrime) {
  // 2^61 is 1, and so (2^60)^2 is 2^59.
  EXPECT_EQ(TextHash::Times(uint64_t{1} << 60, uint64_t{1} << 60), uint64_t{1} << 59);
  EXPECT_EQ(TextHash::Times(TextHash::kModulus - 1, TextHash::kModulus - 1), 1);
  EXPECT_EQ(TextHash::Power(3, 0), 1);
  EXPECT_EQ(TextHash::Power(3, 5), 243);
  EXPECT_EQ(TextHash::Power(12345, TextHash::kModulus - 1), 1) << "Fermat";
}

TEST(KnownTextsTest, FindsTextsWhereverTheyStand) {
  KnownTexts known;
  known.Add("own", Passage(1));
  known.Add("own", Passage(2));
  const std::string text = absl::StrCat("Context: ", Passage(2), "\n", Passage(1), Passage(2));
  const size_t first = 9, second = first + Passage(2).size() + 1, third = second + Passage(1).size();
  EXPECT_THAT(known.Find(kOwn, text), ElementsAre(TextRange{first, second - 1}, TextRange{second, third},
                                                  TextRange{third, text.size()}));
  EXPECT_THAT(known.Find(kOwn, Passage(3)), IsEmpty());
  EXPECT_THAT(known.Find(kOwn, Passage(1).substr(1)), IsEmpty());
  EXPECT_THAT(known.Find(kOwn, ""), IsEmpty());
}

// Each place of a long run of spaces would have it.
TEST(KnownTextsTest, BlankTextsAreNotLookedFor) {
  KnownTexts known;
  known.Add("own", std::string(64, ' '));
  known.Add("own", std::string(1000, '\n') + std::string(1000, '\t'));
  EXPECT_EQ(known.size(), 0);
  known.Add("own", std::string(64, ' ') + "x");
  EXPECT_EQ(known.size(), 1);
}

TEST(KnownTextsTest, OfSeveralTheLongestCounts) {
  KnownTexts known;
  const std::string longer = Passage(1) + Passage(2);
  known.Add("own", Passage(1));
  known.Add("own", longer);
  known.Add("own", Passage(2) + "x");
  EXPECT_THAT(known.Find(kOwn, longer + "x"), ElementsAre(TextRange{0, longer.size()}));
}

TEST(KnownTextsTest, NamespacesKnowNothingOfEachOther) {
  KnownTexts known;
  known.Add("own", Passage(1));
  known.Add("corpus", Passage(2));
  known.Add("other", Passage(3));
  const std::string text = Passage(3) + Passage(2) + Passage(1);
  const size_t second = Passage(3).size(), third = second + Passage(2).size();
  EXPECT_THAT(known.Find(kOwn, text), ElementsAre(TextRange{third, text.size()}));
  EXPECT_THAT(known.Find({"own", "corpus", "none"}, text),
              ElementsAre(TextRange{second, third}, TextRange{third, text.size()}));
  EXPECT_THAT(known.Find({"nobody"}, text), IsEmpty());
}

// Chunks of one file often begin with its path.
TEST(KnownTextsTest, ACommonBeginningHidesNone) {
  KnownTexts known;
  const std::string title(200, '=');
  for (int i = 0; i < 500; ++i) known.Add("own", title + Passage(i));
  for (int i = 0; i < 500; ++i) {
    EXPECT_THAT(known.Find(kOwn, title + Passage(i)), ElementsAre(TextRange{0, 200 + Passage(i).size()}))
        << i;
  }
}

/// A text of which all but a number is in every other one. `place`: of the number, up to 40.
std::string ProductCard(int number, int place) {
  std::string text;
  for (int i = 0; i < 40; ++i) {
    if (i == place) absl::StrAppend(&text, "Article number ", 100'000 + number, "\n");
    absl::StrAppend(&text, "Clause ", i, ": the warranty covers parts of class ", i * i, " and labour.\n");
  }
  return text;
}

// The runs with the least hashes are nearly always of the wording that all of them have. They do not cost a
// prompt of many such texts its comparisons either.
TEST(KnownTextsTest, SharedWordingHidesNone) {
  for (const int place : {0, 13, 20, 39}) {
    KnownTexts known;
    for (int i = 0; i < 400; ++i) known.Add("own", ProductCard(i, place));
    EXPECT_EQ(known.size(), 400);
    std::string all;
    for (int i = 0; i < 400; ++i) {
      const std::string card = ProductCard(i, place);
      EXPECT_THAT(known.Find(kOwn, absl::StrCat("Context: ", card, "\nQ?")),
                  ElementsAre(TextRange{9, 9 + card.size()}))
          << i << " " << place;
      absl::StrAppend(&all, card, "\n");
    }
    EXPECT_EQ(known.Find(kOwn, all).size(), 400);
  }
}

// All runs of the same length of these are the same one. What does not fit is forgotten, so that a search
// ends.
TEST(KnownTextsTest, ARunStandsForABoundedNumberOfTexts) {
  KnownTexts known;
  for (size_t bytes = 64; bytes < 1000; ++bytes) known.Add("own", std::string(bytes, 'a'));
  EXPECT_EQ(known.size(), 1 + 4 * KnownTexts::kMaxTextsPerRun) << "32 bytes, and 64 to 512";
  EXPECT_THAT(known.Find(kOwn, std::string(999, 'a')), ElementsAre(TextRange{0, 999}));
}

TEST(KnownTextsTest, TheOneUsedLongestAgoGoesOfWhoHasMost) {
  KnownTexts known(10);
  known.Add("quiet", Passage(100));
  for (int i = 0; i < 9; ++i) known.Add("own", Passage(i));
  known.Add("own", Passage(0));
  for (int i = 9; i < 12; ++i) known.Add("own", Passage(i));
  EXPECT_EQ(known.size(), 10);
  EXPECT_EQ(known.Find({"quiet"}, Passage(100)).size(), 1);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(known.Find(kOwn, Passage(i)).size(), i >= 1 && i <= 3 ? 0 : 1) << i;
  }
}

TEST(KnownTextsTest, RandomTextsAreFoundAsByComparingAll) {
  for (int seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    // Few letters, and texts cut out of a common one: many that begin alike, contain each other and overlap.
    std::string source;
    for (int i = 0; i < 600; ++i) source += static_cast<char>('a' + random() % (1 + seed % 3 * 2));
    std::set<std::string> texts;
    KnownTexts known;
    const int count = 1 + static_cast<int>(random() % 14);
    for (int i = 0; i < count; ++i) {
      const size_t begin = random() % 500;
      const std::string text = source.substr(begin, 40 + random() % 200);
      texts.insert(text);
      known.Add("own", text);
    }
    std::string searched;
    for (int i = 0; i < 12; ++i) {
      if (random() % 2 == 0) {
        searched += *std::next(texts.begin(), static_cast<int64_t>(random() % texts.size()));
      } else {
        searched += source.substr(random() % 500, random() % 100);
      }
    }
    EXPECT_EQ(known.Find(kOwn, searched), FindNaively(texts, searched));
  }
}

// Sixteen texts stand in every place of it.
TEST(KnownTextsTest, ASearchOfATextMadeToBeSlowEndsAtItsBound) {
  KnownTexts known;
  for (size_t bytes = 64; bytes < 80; ++bytes) known.Add("own", std::string(bytes, 'a'));
  const std::vector<TextRange> found = known.Find(kOwn, std::string(1 << 20, 'a'));
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front(), (TextRange{0, 79}));
  EXPECT_NEAR(static_cast<double>(found.back().end), KnownTexts::kMaxChecks / 16, 100);
}

}  // namespace
}  // namespace kvblend::prompt
