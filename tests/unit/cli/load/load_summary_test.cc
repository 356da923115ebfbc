#include "server/cli/load/load_summary.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::Pair;

LoadRecord Answered(double planned, double first_token, double ended, int tokens) {
  LoadRecord record{.planned = planned, .sent = planned, .first_token = first_token, .ended = ended};
  record.output_tokens = tokens;
  return record;
}

LoadRecord Failed(double planned, double ended, const absl::Status& status) {
  return {.planned = planned, .sent = planned, .ended = ended, .status = status};
}

TEST(LoadSummaryTest, QuantilesMatchNumpy) {
  // numpy.percentile(numpy.arange(1, 21) ** 2, [50, 90, 95, 99])
  std::vector<double> values;
  for (int i = 20; i >= 1; --i) values.push_back(i * i);
  const LatencyQuantiles quantiles = QuantilesOf(values);
  EXPECT_DOUBLE_EQ(quantiles.p50, 110.5);
  EXPECT_DOUBLE_EQ(quantiles.p90, 327.7);
  EXPECT_DOUBLE_EQ(quantiles.p95, 362.95);
  EXPECT_DOUBLE_EQ(quantiles.p99, 392.59);
  EXPECT_DOUBLE_EQ(quantiles.max, 400);
  EXPECT_DOUBLE_EQ(quantiles.mean, 143.5);
  EXPECT_TRUE(std::isnan(QuantilesOf({}).p95));
}

TEST(LoadSummaryTest, CountsFromThePlannedTime) {
  std::vector<LoadRecord> records = {Answered(1, 2, 6, 5), Answered(2, 5, 9, 1),
                                     Failed(3, 3.05, absl::ResourceExhaustedError("full")),
                                     Failed(3, 8, absl::DeadlineExceededError("late"))};
  records[0].sent = 1.5;
  records[0].gaps = {1, 3};
  records[0].chunks = 4;
  records[0].chunk_hits = 3;
  records[0].other_anchor = 1;
  records[0].prompt_tokens = 100;
  records[0].exact_tokens = 25;
  records[0].reused_tokens = 30;
  records[0].recomputed_tokens = 10;
  records[1].matches = false;
  records.push_back(Answered(0, 0, 0, 9));
  records.back().mode = 1;

  // In 8 seconds: the second answer came too late for what was reached per second.
  const LoadSummary summary = SummarizeLoad(records, 0, 8, {.ttft = 1, .seconds_per_token = 1});
  EXPECT_EQ(summary.requests, 4);
  EXPECT_EQ(summary.answered, 2);
  EXPECT_THAT(summary.errors, ElementsAre(Pair("DEADLINE_EXCEEDED", 1), Pair("RESOURCE_EXHAUSTED", 1)));
  EXPECT_EQ(summary.failures, 0);
  EXPECT_DOUBLE_EQ(summary.ttft.max, 3);
  EXPECT_DOUBLE_EQ(summary.ttft.p50, 2);
  EXPECT_DOUBLE_EQ(summary.latency.mean, 6);
  EXPECT_DOUBLE_EQ(summary.inter_token.mean, 2);
  EXPECT_DOUBLE_EQ(summary.seconds_per_token.max, 1);  // (6 - 2) / 4; an answer of one token has none
  EXPECT_NEAR(summary.rejection.max, 0.05, 1e-12);
  EXPECT_DOUBLE_EQ(summary.answers_per_second, 1.0 / 8);
  EXPECT_DOUBLE_EQ(summary.tokens_per_second, 5.0 / 8);
  EXPECT_DOUBLE_EQ(summary.goodput, 1.0 / 8);
  EXPECT_DOUBLE_EQ(summary.hit_rate, 0.75);
  EXPECT_DOUBLE_EQ(summary.other_anchor_rate, 0.25);
  EXPECT_DOUBLE_EQ(summary.exact_share, 0.25);
  EXPECT_DOUBLE_EQ(summary.recomputed_share, 0.25);
  EXPECT_NEAR(summary.late_p99, 0.485, 1e-12);  // numpy.percentile([0.5, 0, 0, 0], 99)
  EXPECT_EQ(summary.mismatches, 1);
  EXPECT_EQ(SummarizeLoad(records, 0, 8, {}, 3).requests, 7);
  EXPECT_EQ(SummarizeLoad(records, 0, 8, {}, 3).unfinished, 3);
  EXPECT_EQ(SummarizeLoad(records, 0, 8, {.ttft = 0.9}).goodput, 0);
  EXPECT_EQ(SummarizeLoad(records, 0, 8, {.seconds_per_token = 0.9}).goodput, 0);
}

TEST(LoadSummaryTest, OneInTwentyMayBeLateAndFailuresAre) {
  std::vector<LoadRecord> records(19, Answered(0, 1, 2, 1));
  records.push_back(Failed(0, 0.1, absl::ResourceExhaustedError("full")));
  EXPECT_TRUE(TtftWithin(records, 0, 1));
  EXPECT_FALSE(TtftWithin(records, 0, 0.9));
  records[0].status = absl::UnavailableError("gone");
  EXPECT_FALSE(TtftWithin(records, 0, 1));
  EXPECT_EQ(AllowedLate(19), 0);
  EXPECT_EQ(AllowedLate(40), 2);
}

}  // namespace
}  // namespace kvblend::server::cli
