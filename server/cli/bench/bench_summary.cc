#include "server/cli/bench/bench_summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "server/cli/bench/statistics.h"

namespace kvblend::server::cli {
namespace {

std::vector<double> Collect(const VariantResults& row, double QuestionResult::*field) {
  std::vector<double> values;
  for (const QuestionResult& question : row.questions) values.push_back(question.*field);
  return values;
}

/// Per question the median of its repeats; NaN where there are none.
std::vector<double> MedianTtfts(const VariantResults& row) {
  std::vector<double> medians;
  for (const QuestionResult& question : row.questions) medians.push_back(Median(question.ttft_seconds));
  return medians;
}

template <typename Operation>
std::vector<double> Pairwise(const std::vector<double>& a, const std::vector<double>& b,
                             Operation operation) {
  std::vector<double> result;
  for (size_t i = 0; i < a.size(); ++i) result.push_back(operation(a[i], b[i]));
  return result;
}

std::optional<Flips> CountFlips(const VariantResults& row) {
  Flips flips;
  for (const QuestionResult& question : row.questions) {
    if (std::isnan(question.exact_match)) return std::nullopt;
    flips.lost += question.full_exact_match > question.exact_match ? 1 : 0;
    flips.won += question.full_exact_match < question.exact_match ? 1 : 0;
  }
  flips.p = McNemarP(flips.lost, flips.won);
  return flips;
}

Comparison Compare(const VariantResults& row, const VariantResults& against, const Bootstrap& bootstrap) {
  const auto ratio = [&](double QuestionResult::*field) {
    return bootstrap.OfRatio(Collect(row, field), Collect(against, field));
  };
  const auto difference = [&](double QuestionResult::*field) {
    return bootstrap.OfMean(Pairwise(Collect(row, field), Collect(against, field), std::minus<>()));
  };
  return {
      .against = against.variant.RowName(),
      .kl_ratio = ratio(&QuestionResult::kl),
      .kl_first_token_ratio = ratio(&QuestionResult::kl_first_token),
      .ttft_ratio = bootstrap.OfMedian(Pairwise(MedianTtfts(row), MedianTtfts(against), std::divides<>())),
      .top1_difference = difference(&QuestionResult::top1_agreement),
      .f1_difference = difference(&QuestionResult::answer_f1),
      .exact_match_difference = difference(&QuestionResult::exact_match),
      .answer_nll_difference = difference(&QuestionResult::answer_nll)};
}

BenchRow SumUp(const VariantResults& results, const VariantResults* full, const Bootstrap& bootstrap) {
  BenchRow row;
  row.variant = results.variant;
  row.num_questions = static_cast<int>(results.questions.size());
  row.prompt_tokens_mean = Mean(Collect(results, &QuestionResult::prompt_tokens));
  row.exact_tokens_mean = Mean(Collect(results, &QuestionResult::exact_tokens));
  row.reused_tokens_mean = Mean(Collect(results, &QuestionResult::reused_tokens));
  row.recomputed_tokens_mean = Mean(Collect(results, &QuestionResult::recomputed_tokens));
  row.computed_tokens_mean = Mean(Collect(results, &QuestionResult::computed_tokens));
  for (const QuestionResult& question : results.questions) row.missing_chunks += question.missing_chunks;
  const std::vector<double> ttfts = MedianTtfts(results);
  if (std::none_of(ttfts.begin(), ttfts.end(), [](double seconds) { return std::isnan(seconds); })) {
    row.ttft_p50 = Percentile(ttfts, 0.50);
    row.ttft_p95 = Percentile(ttfts, 0.95);
    if (full != nullptr) {
      row.ttft_speedup = bootstrap.OfMedian(Pairwise(MedianTtfts(*full), ttfts, std::divides<>()));
    }
  }
  const auto mean = [&](double QuestionResult::*field) { return bootstrap.OfMean(Collect(results, field)); };
  row.kl_first_token_mean = mean(&QuestionResult::kl_first_token);
  row.kl_mean = mean(&QuestionResult::kl);
  if (!std::isnan(row.kl_mean.value)) row.kl_median = Median(Collect(results, &QuestionResult::kl));
  row.top1_agreement = mean(&QuestionResult::top1_agreement);
  row.f1_mean = mean(&QuestionResult::answer_f1);
  row.exact_match_mean = mean(&QuestionResult::exact_match);
  row.answer_nll_mean = mean(&QuestionResult::answer_nll);
  row.flips = CountFlips(results);
  return row;
}

}  // namespace

std::vector<DataResults> GroupByData(const std::vector<BenchVariant>& variants,
                                     std::vector<FinishedQuestion> questions) {
  std::vector<DataResults> groups;
  const auto group_of = [&](const std::string& data) -> DataResults& {
    for (DataResults& group : groups) {
      if (group.data == data) return group;
    }
    DataResults& group = groups.emplace_back(DataResults{.data = data, .rows = {}});
    for (const BenchVariant& variant : variants) group.rows.push_back({.variant = variant, .questions = {}});
    return group;
  };
  for (const FinishedQuestion& question : questions) group_of(question.data);
  std::stable_sort(questions.begin(), questions.end(),
                   [](const auto& a, const auto& b) { return a.index < b.index; });
  for (FinishedQuestion& question : questions) {
    DataResults& group = group_of(question.data);
    for (size_t i = 0; i < variants.size(); ++i) {
      group.rows[i].questions.push_back(std::move(question.rows[i]));
    }
  }
  return groups;
}

std::vector<BenchRow> Summarize(const std::vector<VariantResults>& results, std::optional<size_t> against) {
  const auto full = std::find_if(results.begin(), results.end(), [](const VariantResults& candidate) {
    return candidate.variant.mode == BenchMode::kFull;
  });
  const Bootstrap bootstrap(results.empty() ? 0 : results.front().questions.size());
  std::vector<BenchRow> rows;
  for (const VariantResults& row : results) {
    rows.push_back(SumUp(row, full == results.end() ? nullptr : &*full, bootstrap));
    if (against) rows.back().comparison = Compare(row, results[*against], bootstrap);
  }
  return rows;
}

}  // namespace kvblend::server::cli
