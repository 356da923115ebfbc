// What the bench says of differences between rows: pairs, flips, and how it looks.
#include "server/cli/bench/bench_summary.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/cli/bench/bench_report.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Le;
using testing::Not;

/// Three rows over 20 questions of very different KL: `b` has half of `a`'s, and answers 6 right where full
/// prefill answers 8, of which one is another.
std::vector<VariantResults> Results() {
  std::vector<VariantResults> results = {{.variant = *ParseRow("full"), .questions = {}},
                                         {.variant = CacheBlendAsPublished(), .questions = {}},
                                         {.variant = *ParseRow("reuse"), .questions = {}}};
  for (int i = 0; i < 20; ++i) {
    const double kl = std::exp(i % 7);
    for (VariantResults& row : results) {
      const bool full = row.variant.mode == BenchMode::kFull;
      const bool reuse = row.variant.mode == BenchMode::kReuse;
      QuestionResult& result = row.questions.emplace_back();
      result.kl = full ? 0 : reuse ? kl / 2 : kl;
      result.kl_first_token = result.kl;
      result.ttft_seconds = {full ? 8.0 : reuse ? 1.0 : 4.0};
      result.full_exact_match = i < 8;
      result.exact_match = reuse ? i < 5 || i == 19 : i < 8;
      result.answer_f1 = result.exact_match;
      result.top1_agreement = reuse ? 1 : 0.75;
    }
  }
  return results;
}

TEST(BenchSummaryTest, ComparesOnTheSameQuestions) {
  const std::vector<BenchRow> rows = Summarize(Results(), 1);
  const Comparison& comparison = *rows[2].comparison;
  EXPECT_EQ(comparison.against, "cacheblend");
  // Every question halves, so every draw does, however far apart the questions are.
  EXPECT_DOUBLE_EQ(comparison.kl_ratio.value, 0.5);
  EXPECT_NEAR(comparison.kl_ratio.interval.low, 0.5, 1e-12);
  EXPECT_NEAR(comparison.kl_ratio.interval.high, 0.5, 1e-12);
  EXPECT_LT(rows[2].kl_mean.interval.low, 0.7 * rows[2].kl_mean.value);
  EXPECT_DOUBLE_EQ(comparison.ttft_ratio.value, 0.25);
  EXPECT_DOUBLE_EQ(comparison.top1_difference.value, 0.25);
  EXPECT_NEAR(comparison.f1_difference.value, -2.0 / 20, 1e-12);
  EXPECT_LT(comparison.f1_difference.interval.low, -0.1);
  EXPECT_TRUE(std::isnan(comparison.answer_nll_difference.value));
  EXPECT_DOUBLE_EQ(rows[2].ttft_speedup.value, 8);
  EXPECT_DOUBLE_EQ(rows[2].ttft_speedup.interval.high, 8);
  EXPECT_FALSE(Summarize(Results())[2].comparison.has_value());
}

TEST(BenchSummaryTest, CountsAnswersThatFlip) {
  const std::vector<BenchRow> rows = Summarize(Results());
  EXPECT_EQ(rows[1].flips->lost, 0);
  EXPECT_EQ(rows[2].flips->lost, 3);
  EXPECT_EQ(rows[2].flips->won, 1);
  EXPECT_NEAR(rows[2].flips->p, 0.625, 1e-12);  // 2 (1 + 4) / 16
  std::vector<VariantResults> results = Results();
  results[1].questions[3].exact_match = kNotMeasured;
  EXPECT_FALSE(Summarize(results)[1].flips.has_value());
}

TEST(BenchSummaryTest, GroupsByDataInTheOrderOfTheFiles) {
  std::vector<FinishedQuestion> questions;
  for (const auto& [data, index] : std::vector<std::pair<std::string, int>>{{"b", 2}, {"a", 1}, {"b", 0}}) {
    questions.push_back({.data = data, .index = index, .hash = "", .rows = std::vector<QuestionResult>(1)});
    questions.back().rows[0].kl = index;
  }
  const auto groups = GroupByData({*ParseRow("reuse")}, questions);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].data, "b");
  EXPECT_EQ(groups[0].rows[0].questions[0].kl, 0);
  EXPECT_EQ(groups[0].rows[0].questions[1].kl, 2);
  EXPECT_EQ(groups[1].rows[0].questions.size(), 1u);
}

TEST(BenchSummaryTest, EvidenceReadsInEightyColumns) {
  const std::string text = FormatEvidence(Summarize(Results(), 1));
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) EXPECT_THAT(line.size(), Le(80u)) << line;
  EXPECT_THAT(text, HasSubstr("  against cacheblend\n"));
  EXPECT_THAT(text, HasSubstr("0.50x [0.50, 0.50]\n"));
  EXPECT_THAT(lines.at(lines.size() - 2), HasSubstr("0.300     3    1  0.6"));
  EXPECT_THAT(FormatEvidence(Summarize(Results())), Not(HasSubstr("against")));
  std::vector<VariantResults> one = Results();
  for (VariantResults& row : one) row.questions.resize(1);
  EXPECT_EQ(FormatEvidence(Summarize(one)), "");
}

TEST(BenchSummaryTest, JsonHasIntervalsUnderTheNamesOfTheirFigures) {
  const OrderedJson json = ToJson(Summarize(Results(), 1)[2], "musique", 3);
  EXPECT_EQ(json["data"], "musique");
  EXPECT_EQ(json["ci95"]["kl_mean"].size(), 2u);
  EXPECT_TRUE(json["ci95"]["answer_nll_mean"].is_null());
  EXPECT_EQ(json["against"]["row"], "cacheblend");
  EXPECT_EQ(json["against"]["kl_ratio"], 0.5);
  EXPECT_EQ(json["against"]["ci95"]["kl_ratio"].size(), 2u);
  EXPECT_EQ(json["flips"]["lost"], 3);
  EXPECT_TRUE(ToJson(Summarize(Results())[2], "musique", 3)["against"].is_null());
}

}  // namespace
}  // namespace kvblend::server::cli
