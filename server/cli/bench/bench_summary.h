// The bench's figures: results per question summed up per row, with intervals and comparisons.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/cli/bench/bench_spec.h"
#include "server/cli/bench/bootstrap.h"
#include "server/cli/bench/question_result.h"

namespace kvblend::server::cli {

/// A row's results, one per question. All rows of one table have the same questions in the same order.
struct VariantResults {
  BenchVariant variant;
  std::vector<QuestionResult> questions;
};

/// The questions of one data file.
struct DataResults {
  std::string data;
  std::vector<VariantResults> rows;
};

/// Per data file, in the order in which they come first; questions by their index.
std::vector<DataResults> GroupByData(const std::vector<BenchVariant>& variants,
                                     std::vector<FinishedQuestion> questions);

/// Questions that are answered right, word for word, by full prefill or by the row, but not by both.
struct Flips {
  int lost = 0;  // right with full prefill alone
  int won = 0;   // right with the row alone
  double p =
      1;  // McNemar's exact test: chance of such a split if reuse changed answers for better and worse alike
};

/// A row beside the row that it is held against, on the same questions: intervals are paired.
struct Comparison {
  std::string against;  // name of the other row
  Estimate kl_ratio;    // mean divided by the other's mean
  Estimate kl_first_token_ratio;
  Estimate ttft_ratio;       // median over the questions of TTFT divided by the other's
  Estimate top1_difference;  // mean minus the other's, here and below
  Estimate f1_difference;
  Estimate exact_match_difference;
  Estimate answer_nll_difference;
};

/// One variant over all questions of a data file. NaN: not measured. Intervals are over the questions.
struct BenchRow {
  BenchVariant variant;
  int num_questions = 0;
  double prompt_tokens_mean = 0;
  double exact_tokens_mean = 0;
  double reused_tokens_mean = 0;
  double recomputed_tokens_mean = 0;
  double computed_tokens_mean = 0;
  int missing_chunks = 0;  // in all questions together; figures with misses are no figures of the variant
  // Over the questions' medians.
  double ttft_p50 = kNotMeasured;
  double ttft_p95 = kNotMeasured;
  // Median over the questions of full prefill's TTFT divided by this one's; NaN when full was not among the
  // modes.
  Estimate ttft_speedup;
  Estimate kl_first_token_mean;
  Estimate kl_mean;
  double kl_median = kNotMeasured;
  Estimate top1_agreement;
  Estimate f1_mean;
  Estimate exact_match_mean;
  Estimate answer_nll_mean;
  std::optional<Flips> flips;            // where answers were generated
  std::optional<Comparison> comparison;  // where there is a row to hold against
};

/// One per row of the results; `against`: index of the row that the others are held against.
std::vector<BenchRow> Summarize(const std::vector<VariantResults>& results,
                                std::optional<size_t> against = std::nullopt);

}  // namespace kvblend::server::cli
