#include "server/cli/bench/bench_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "server/cli/bench/statistics.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

std::vector<double> Collect(const std::vector<QuestionResult>& questions, double QuestionResult::*field) {
  std::vector<double> values;
  for (const QuestionResult& question : questions) {
    if (!std::isnan(question.*field)) values.push_back(question.*field);
  }
  return values;
}

std::vector<double> MedianTtfts(const std::vector<QuestionResult>& questions) {
  std::vector<double> medians;
  for (const QuestionResult& question : questions) {
    if (!question.ttft_seconds.empty()) medians.push_back(Median(question.ttft_seconds));
  }
  return medians;
}

OrderedJson NumberOrNull(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson(nullptr);
}

void AddVariant(const BenchVariant& variant, OrderedJson& json) {
  json["mode"] = kvblend::Name(variant.mode);
  json["policy"] = variant.policy ? OrderedJson(Name(*variant.policy)) : OrderedJson(nullptr);
  json["ratio"] = !variant.ratio   ? OrderedJson(nullptr)
                  : *variant.ratio ? OrderedJson(**variant.ratio)
                                   : OrderedJson(RatioName(kAutoRatio));
  if (variant.query_layers > 0) json["query_layers"] = variant.query_layers;
  json["anchored"] = variant.anchoring == v1::ANCHORING_ANCHORED;
  if (variant.policy) json["corrected"] = variant.correction;
}

std::string Number(double value, int decimals) {
  return std::isfinite(value) ? absl::StrFormat("%.*f", decimals, value) : "-";
}

// Three significant digits between a millisecond and minutes, all in seconds so that rows compare at a
// glance.
std::string Seconds(double value) {
  if (!std::isfinite(value)) return "-";
  return absl::StrFormat("%.*f", value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3, value);
}

struct Column {
  std::string_view head;
  std::string_view unit;
  int width;  // negative: aligned left
};

// With two blanks in between: 116 columns.
constexpr std::array<Column, 14> kColumns = {{{"mode", "", -6},
                                              {"policy", "", -8},
                                              {"ratio", "", 5},
                                              {"chunks", "", -12},
                                              {"prompt", "tokens", 6},
                                              {"recomp", "tokens", 6},
                                              {"TTFT", "p50, s", 6},
                                              {"TTFT", "p95, s", 6},
                                              {"speedup", "vs full", 7},
                                              {"KL 1st", "nats", 6},
                                              {"KL mean", "nats", 7},
                                              {"top-1", "agree", 5},
                                              {"F1", "", 5},
                                              {"gold", "NLL", 5}}};

using Cells = std::array<std::string, kColumns.size()>;

std::string FormatLine(const Cells& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    absl::StrAppendFormat(&line, "%s%*s", i == 0 ? "" : "  ", kColumns[i].width, cells[i]);
  }
  return absl::StrCat(absl::StripTrailingAsciiWhitespace(line), "\n");
}

// "query:20" where only the first 20 layers vote.
std::string PolicyCell(const BenchVariant& variant) {
  if (!variant.policy) return "-";
  std::string cell = Name(*variant.policy);
  if (variant.query_layers > 0) absl::StrAppend(&cell, ":", variant.query_layers);
  return cell;
}

// "anchored raw" where stored KV is placed as it is.
std::string ChunksCell(const BenchVariant& variant) {
  return absl::StrCat(Name(variant.anchoring), variant.correction ? "" : " raw");
}

Cells MakeCells(const BenchRow& row) {
  const BenchVariant& variant = row.variant;
  return {std::string(kvblend::Name(variant.mode)),
          PolicyCell(variant),
          !variant.ratio   ? "-"
          : *variant.ratio ? absl::StrFormat("%.2f", **variant.ratio)
                           : RatioName(kAutoRatio),
          variant.mode == BenchMode::kFull ? "-" : ChunksCell(variant),
          Number(row.prompt_tokens_mean, 0),
          Number(row.recomputed_tokens_mean, 0),
          Seconds(row.ttft_p50),
          Seconds(row.ttft_p95),
          std::isfinite(row.ttft_speedup) ? absl::StrFormat("%.1fx", row.ttft_speedup) : "-",
          Number(row.kl_first_token_mean, 4),
          Number(row.kl_mean, 4),
          Number(row.top1_agreement, 3),
          Number(row.f1_mean, 3),
          Number(row.answer_nll_mean, 3)};
}

}  // namespace

std::vector<BenchRow> Summarize(const std::vector<VariantResults>& results) {
  const auto full = std::find_if(results.begin(), results.end(), [](const VariantResults& candidate) {
    return candidate.variant.mode == BenchMode::kFull;
  });
  const std::vector<double> full_ttfts =
      full == results.end() ? std::vector<double>() : MedianTtfts(full->questions);
  std::vector<BenchRow> rows;
  for (const auto& [variant, questions] : results) {
    BenchRow row;
    row.variant = variant;
    row.num_questions = static_cast<int>(questions.size());
    row.prompt_tokens_mean = Mean(Collect(questions, &QuestionResult::prompt_tokens));
    row.exact_tokens_mean = Mean(Collect(questions, &QuestionResult::exact_tokens));
    row.reused_tokens_mean = Mean(Collect(questions, &QuestionResult::reused_tokens));
    row.recomputed_tokens_mean = Mean(Collect(questions, &QuestionResult::recomputed_tokens));
    row.computed_tokens_mean = Mean(Collect(questions, &QuestionResult::computed_tokens));
    for (const QuestionResult& question : questions) row.missing_chunks += question.missing_chunks;
    const std::vector<double> ttfts = MedianTtfts(questions);
    row.ttft_p50 = Percentile(ttfts, 0.50);
    row.ttft_p95 = Percentile(ttfts, 0.95);
    if (!ttfts.empty() && ttfts.size() == full_ttfts.size()) {
      std::vector<double> speedups;
      for (size_t i = 0; i < ttfts.size(); ++i) speedups.push_back(full_ttfts[i] / ttfts[i]);
      row.ttft_speedup = Median(speedups);
    }
    row.kl_first_token_mean = Mean(Collect(questions, &QuestionResult::kl_first_token));
    row.kl_mean = Mean(Collect(questions, &QuestionResult::kl));
    row.kl_median = Median(Collect(questions, &QuestionResult::kl));
    row.top1_agreement = Mean(Collect(questions, &QuestionResult::top1_agreement));
    row.f1_mean = Mean(Collect(questions, &QuestionResult::answer_f1));
    row.answer_nll_mean = Mean(Collect(questions, &QuestionResult::answer_nll));
    rows.push_back(std::move(row));
  }
  return rows;
}

OrderedJson ToJson(const BenchRow& row, int repeats) {
  OrderedJson json;
  AddVariant(row.variant, json);
  json["n"] = row.num_questions;
  json["prompt_tokens_mean"] = NumberOrNull(row.prompt_tokens_mean);
  json["recomputed_tokens_mean"] = NumberOrNull(row.recomputed_tokens_mean);
  json["ttft_s"] = {{"p50", NumberOrNull(row.ttft_p50)}, {"p95", NumberOrNull(row.ttft_p95)}};
  json["kl_first_token_mean"] = NumberOrNull(row.kl_first_token_mean);
  json["kl_mean"] = NumberOrNull(row.kl_mean);
  json["top1_agreement"] = NumberOrNull(row.top1_agreement);
  json["f1_mean"] = NumberOrNull(row.f1_mean);
  json["answer_nll_mean"] = NumberOrNull(row.answer_nll_mean);
  json["kl_median"] = NumberOrNull(row.kl_median);
  json["ttft_speedup"] = NumberOrNull(row.ttft_speedup);
  json["ttft_repeats"] = repeats;
  json["exact_tokens_mean"] = NumberOrNull(row.exact_tokens_mean);
  json["reused_tokens_mean"] = NumberOrNull(row.reused_tokens_mean);
  json["computed_tokens_mean"] = NumberOrNull(row.computed_tokens_mean);
  json["missing_chunks"] = row.missing_chunks;
  return json;
}

OrderedJson ToJson(const BenchVariant& variant, const QuestionResult& result) {
  OrderedJson json;
  AddVariant(variant, json);
  json["question"] = result.question_index;
  json["prompt_tokens"] = result.prompt_tokens;
  json["recomputed_tokens"] = result.recomputed_tokens;
  json["ttft_s"] = result.ttft_seconds;
  json["kl_first_token"] = NumberOrNull(result.kl_first_token);
  json["kl"] = NumberOrNull(result.kl);
  json["top1_agreement"] = NumberOrNull(result.top1_agreement);
  json["f1"] = NumberOrNull(result.answer_f1);
  json["answer_nll"] = NumberOrNull(result.answer_nll);
  json["answer"] = result.answer;
  return json;
}

std::string FormatTable(const std::vector<BenchRow>& rows) {
  Cells heads;
  Cells units;
  for (size_t i = 0; i < kColumns.size(); ++i) {
    heads[i] = kColumns[i].head;
    units[i] = kColumns[i].unit;
  }
  std::string table = FormatLine(heads) + FormatLine(units);
  for (const BenchRow& row : rows) table += FormatLine(MakeCells(row));
  return table;
}

}  // namespace kvblend::server::cli
