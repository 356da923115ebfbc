#include "server/cli/bench/answer_metrics.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(AnswerMetricsTest, NormalisesCasePunctuationArticlesAndSpace) {
  EXPECT_THAT(NormalizedAnswerWords("  The U.S.A., and\tan  Apple's\nA-team "),
              ElementsAre("usa", "and", "apples", "ateam"));
  EXPECT_THAT(NormalizedAnswerWords("theatre anna"),
              ElementsAre("theatre", "anna"));  // no articles within words
  EXPECT_THAT(NormalizedAnswerWords("The... a, AN!"), IsEmpty());
}

TEST(AnswerMetricsTest, LowersLatin1AndKeepsOtherUtf8) {
  EXPECT_THAT(NormalizedAnswerWords("ÉCOLE Über × 東京 Žižek"),
              ElementsAre("école", "über", "×", "東京", "Žižek"));
}

TEST(AnswerMetricsTest, F1MatchesHandComputedValues) {
  EXPECT_DOUBLE_EQ(AnswerF1("Exeter College.", "exeter college"), 1.0);
  EXPECT_DOUBLE_EQ(AnswerF1("Exeter College, Oxford", "Exeter College"), 0.8);            // P = 2/3, R = 1
  EXPECT_DOUBLE_EQ(AnswerF1("He studied in Oxford", "Exeter College, Oxford"), 2.0 / 7);  // P = 1/4, R = 1/3
  EXPECT_DOUBLE_EQ(AnswerF1("Cambridge", "Oxford"), 0.0);
}

TEST(AnswerMetricsTest, RepeatedWordsCountAsOftenAsTheyOccur) {
  EXPECT_DOUBLE_EQ(AnswerF1("New York, New York", "New York"), 2.0 * 2 / 6);
  EXPECT_DOUBLE_EQ(AnswerF1("New New New", "New York New"), 2.0 * 2 / 6);
}

TEST(AnswerMetricsTest, EmptySides) {
  EXPECT_DOUBLE_EQ(AnswerF1("", "Oxford"), 0.0);
  EXPECT_DOUBLE_EQ(AnswerF1("Oxford", "the"), 0.0);
  EXPECT_DOUBLE_EQ(AnswerF1("!", "the"), 1.0);
}

TEST(AnswerMetricsTest, TakesTheBestGold) {
  EXPECT_DOUBLE_EQ(BestAnswerF1("Mr. Smith", {"Jones", "John Smith", "Smith"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(BestAnswerF1("anything", {}), 0.0);
}

TEST(AnswerMetricsTest, FirstLineSkipsBlankOnesAndTrims) {
  EXPECT_EQ(FirstLine("\n \n  Exeter College \r\nBecause ..."), "Exeter College");
  EXPECT_EQ(FirstLine("one line"), "one line");
  EXPECT_EQ(FirstLine(" \n\t"), "");
  EXPECT_EQ(FirstLine(""), "");
}

TEST(AnswerMetricsTest, ExactMatchIsWordForWord) {
  const std::vector<std::string> golds = {"Exeter College", "the Sun"};
  EXPECT_TRUE(IsExactMatch("exeter college.", golds));
  EXPECT_TRUE(IsExactMatch("Sun", golds));
  EXPECT_FALSE(IsExactMatch("College Exeter", golds));  // F1 is 1
  EXPECT_FALSE(IsExactMatch("Exeter College, Oxford", golds));
  EXPECT_FALSE(IsExactMatch("", golds));
  EXPECT_FALSE(IsExactMatch("", {}));
}

}  // namespace
}  // namespace kvblend::server::cli
