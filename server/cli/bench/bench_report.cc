#include "server/cli/bench/bench_report.h"

#include <array>
#include <cmath>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "server/convert/enums.h"

namespace kvblend::server::cli {
namespace {

void AddVariant(const BenchVariant& variant, OrderedJson& json) {
  json["mode"] = kvblend::Name(variant.mode);
  json["policy"] = variant.policy ? OrderedJson(Name(*variant.policy)) : OrderedJson(nullptr);
  json["ratio"] = !variant.ratio   ? OrderedJson(nullptr)
                  : *variant.ratio ? OrderedJson(**variant.ratio)
                                   : OrderedJson(RatioName(kAutoRatio));
  if (variant.query_layers > 0) json["query_layers"] = variant.query_layers;
  json["anchored"] = variant.anchoring == v1::ANCHORING_ANCHORED;
  if (variant.policy) json["corrected"] = variant.correction;
  if (variant.mode == BenchMode::kBlend) json["spread"] = variant.spread;
}

/// The figure, and its interval under the same key.
void AddEstimate(const char* key, const Estimate& estimate, OrderedJson& figures, OrderedJson& intervals) {
  figures[key] = NumberOrNull(estimate.value);
  intervals[key] = std::isfinite(estimate.interval.low) ? OrderedJson{NumberOrNull(estimate.interval.low),
                                                                      NumberOrNull(estimate.interval.high)}
                                                        : OrderedJson(nullptr);
}

OrderedJson ToJson(const Comparison& comparison) {
  OrderedJson json = {{"row", comparison.against}};
  OrderedJson intervals;
  AddEstimate("kl_ratio", comparison.kl_ratio, json, intervals);
  AddEstimate("kl_first_token_ratio", comparison.kl_first_token_ratio, json, intervals);
  AddEstimate("ttft_ratio", comparison.ttft_ratio, json, intervals);
  AddEstimate("top1_difference", comparison.top1_difference, json, intervals);
  AddEstimate("f1_difference", comparison.f1_difference, json, intervals);
  AddEstimate("exact_match_difference", comparison.exact_match_difference, json, intervals);
  AddEstimate("answer_nll_difference", comparison.answer_nll_difference, json, intervals);
  json["ci95"] = intervals;
  return json;
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

// With two blanks in between: 119 columns.
constexpr std::array<Column, 14> kColumns = {{{"mode", "", -6},
                                              {"policy", "", -11},
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

// "query:20" where its pass has the first 20 layers, "query alone" where deviations are not passed on.
std::string PolicyCell(const BenchVariant& variant) {
  if (!variant.policy) return "-";
  std::string cell = Name(*variant.policy);
  if (variant.query_layers > 0) absl::StrAppend(&cell, ":", variant.query_layers);
  if (!variant.spread) cell += " alone";
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
          std::isfinite(row.ttft_speedup.value) ? absl::StrFormat("%.1fx", row.ttft_speedup.value) : "-",
          Number(row.kl_first_token_mean.value, 4),
          Number(row.kl_mean.value, 4),
          Number(row.top1_agreement.value, 3),
          Number(row.f1_mean.value, 3),
          Number(row.answer_nll_mean.value, 3)};
}

}  // namespace

OrderedJson ToJson(const BenchRow& row, const std::string& data, int repeats) {
  OrderedJson json;
  json["data"] = data;
  AddVariant(row.variant, json);
  json["n"] = row.num_questions;
  json["prompt_tokens_mean"] = NumberOrNull(row.prompt_tokens_mean);
  json["recomputed_tokens_mean"] = NumberOrNull(row.recomputed_tokens_mean);
  json["ttft_s"] = {{"p50", NumberOrNull(row.ttft_p50)}, {"p95", NumberOrNull(row.ttft_p95)}};
  OrderedJson intervals;
  AddEstimate("kl_first_token_mean", row.kl_first_token_mean, json, intervals);
  AddEstimate("kl_mean", row.kl_mean, json, intervals);
  AddEstimate("top1_agreement", row.top1_agreement, json, intervals);
  AddEstimate("f1_mean", row.f1_mean, json, intervals);
  AddEstimate("exact_match_mean", row.exact_match_mean, json, intervals);
  AddEstimate("answer_nll_mean", row.answer_nll_mean, json, intervals);
  json["kl_median"] = NumberOrNull(row.kl_median);
  AddEstimate("ttft_speedup", row.ttft_speedup, json, intervals);
  json["ci95"] = intervals;
  json["flips"] = row.flips
                      ? OrderedJson{{"lost", row.flips->lost}, {"won", row.flips->won}, {"p", row.flips->p}}
                      : OrderedJson(nullptr);
  json["against"] = row.comparison ? ToJson(*row.comparison) : OrderedJson(nullptr);
  json["ttft_repeats"] = repeats;
  json["exact_tokens_mean"] = NumberOrNull(row.exact_tokens_mean);
  json["reused_tokens_mean"] = NumberOrNull(row.reused_tokens_mean);
  json["computed_tokens_mean"] = NumberOrNull(row.computed_tokens_mean);
  json["missing_chunks"] = row.missing_chunks;
  return json;
}

OrderedJson ToJson(const BenchVariant& variant, const FinishedQuestion& question,
                   const QuestionResult& result) {
  OrderedJson json;
  json["data"] = question.data;
  json["question"] = question.index;
  AddVariant(variant, json);
  json.update(ToJson(result));
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
