// The bench's figures: summed up per variant, as JSON for machines and as a table for people.
#pragma once

#include <string>
#include <vector>

#include "server/cli/bench/bench_runner.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {

/// One variant over all questions. NaN: not measured.
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
  double ttft_speedup = kNotMeasured;
  double kl_first_token_mean = kNotMeasured;
  double kl_mean = kNotMeasured;
  double kl_median = kNotMeasured;
  double top1_agreement = kNotMeasured;
  double f1_mean = kNotMeasured;
  double answer_nll_mean = kNotMeasured;
};

std::vector<BenchRow> Summarize(const std::vector<VariantResults>& results);

/// One line of the bench's JSON; what was not measured, or does not apply to the mode, is null.
OrderedJson ToJson(const BenchRow& row, int repeats);
/// One question under one variant, for studies of single questions.
OrderedJson ToJson(const BenchVariant& variant, const QuestionResult& result);

/// Aligned columns, at most 110 wide, with a header of two lines.
std::string FormatTable(const std::vector<BenchRow>& rows);

}  // namespace kvblend::server::cli
