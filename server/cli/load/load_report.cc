#include "server/cli/load/load_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/cli/bench/question_result.h"

namespace kvblend::server::cli {
namespace {

OrderedJson QuantilesJson(const LatencyQuantiles& quantiles) {
  return {{"mean", NumberOrNull(quantiles.mean)}, {"p50", NumberOrNull(quantiles.p50)},
          {"p90", NumberOrNull(quantiles.p90)},   {"p95", NumberOrNull(quantiles.p95)},
          {"p99", NumberOrNull(quantiles.p99)},   {"max", NumberOrNull(quantiles.max)}};
}

std::string_view KindName(LoadKind kind) {
  switch (kind) {
    case LoadKind::kUnloaded:
      return "unloaded";
    case LoadKind::kRate:
      return "rate";
    case LoadKind::kTrace:
      return "trace";
    case LoadKind::kClients:
      return "clients";
  }
  return "";
}

std::string SecondsCell(double seconds) { return std::isfinite(seconds) ? HumanSeconds(seconds) : "-"; }

std::string PercentCell(double share) {
  return std::isfinite(share) ? absl::StrFormat("%.0f%%", 100 * share) : "-";
}

constexpr size_t kLoadColumns = 13;
using LoadCells = std::array<std::string, kLoadColumns>;

LoadCells CellsOf(const LoadPoint& point, const std::vector<BenchVariant>& modes) {
  const LoadSummary& summary = point.summary;
  return {modes[point.mode].RowName(),
          LoadName(point),
          absl::StrCat(summary.answered, point.cut_off() ? "+" : "", "/", summary.requests),
          SecondsCell(summary.ttft.p50),
          SecondsCell(summary.ttft.p95),
          SecondsCell(summary.ttft.p99),
          SecondsCell(summary.inter_token.p50),
          SecondsCell(summary.inter_token.p99),
          SecondsCell(summary.latency.p95),
          HumanNumber(summary.answers_per_second),
          HumanNumber(summary.goodput),
          PercentCell(summary.hit_rate),
          PercentCell(summary.recomputed_share)};
}

std::string ErrorLine(const LoadPoint& point, const std::vector<BenchVariant>& modes) {
  const LoadSummary& summary = point.summary;
  std::string line;
  if (point.interrupted) absl::StrAppend(&line, "interrupted, ", summary.unfinished, " unfinished");
  for (const auto& [code, count] : summary.errors)
    absl::StrAppend(&line, line.empty() ? "" : ", ", count, " ", code);
  if (summary.errors.contains("RESOURCE_EXHAUSTED")) {
    absl::StrAppend(&line, " (refused within ", SecondsCell(summary.rejection.p99), " at p99)");
  }
  if (summary.mismatches > 0) {
    absl::StrAppend(&line, line.empty() ? "" : ", ", summary.mismatches,
                    " answers differ from their references");
  }
  if (line.empty()) return line;
  return absl::StrCat(modes[point.mode].RowName(), ", ", LoadName(point), ": ", line, "\n");
}

}  // namespace

std::string LoadName(const LoadPoint& point) {
  switch (point.kind) {
    case LoadKind::kUnloaded:
      return "unloaded";
    case LoadKind::kRate:
      return absl::StrCat(HumanNumber(point.rate), "/s");
    case LoadKind::kTrace:
      return "trace";
    case LoadKind::kClients:
      return absl::StrCat(point.clients, point.clients == 1 ? " client" : " clients");
  }
  return "";
}

const char* BegunBy(const LoadRun& run) { return run.turns > 1 ? "conversations" : "requests"; }

OrderedJson ToJson(const LoadPoint& point, const std::vector<BenchVariant>& modes) {
  const LoadSummary& summary = point.summary;
  OrderedJson errors = OrderedJson::object();
  for (const auto& [code, count] : summary.errors) errors[code] = count;
  const bool has_rate = point.kind == LoadKind::kRate || point.kind == LoadKind::kTrace;
  return {{"kind", KindName(point.kind)},
          {"mode", modes[point.mode].RowName()},
          {"rate", has_rate ? OrderedJson(point.rate) : OrderedJson(nullptr)},
          {"clients", point.clients > 0 ? OrderedJson(point.clients) : OrderedJson(nullptr)},
          {"seconds", point.seconds},
          {"stopped_early", point.stopped_early},
          {"interrupted", point.interrupted},
          {"requests", summary.requests},
          {"answered", summary.answered},
          {"unfinished", summary.unfinished},
          {"errors", errors},
          {"ttft_s", QuantilesJson(summary.ttft)},
          {"inter_token_s", QuantilesJson(summary.inter_token)},
          {"per_token_s", QuantilesJson(summary.seconds_per_token)},
          {"e2e_s", QuantilesJson(summary.latency)},
          {"rejection_s", QuantilesJson(summary.rejection)},
          {"answers_per_second", summary.answers_per_second},
          {"tokens_per_second", summary.tokens_per_second},
          {"goodput", summary.goodput},
          {"hit_rate", NumberOrNull(summary.hit_rate)},
          {"other_anchor_rate", NumberOrNull(summary.other_anchor_rate)},
          {"exact_share", NumberOrNull(summary.exact_share)},
          {"recomputed_share", NumberOrNull(summary.recomputed_share)},
          {"late_p99_s", NumberOrNull(summary.late_p99)},
          {"mismatches", summary.mismatches}};
}

OrderedJson ToJson(const HighestRate& highest, const std::vector<BenchVariant>& modes) {
  return {{"kind", "highest_rate"},
          {"mode", modes[highest.mode].RowName()},
          {"ttft_limit_s", highest.limit},
          {"highest", highest.highest},
          {"refused", highest.refused ? OrderedJson(*highest.refused) : OrderedJson(nullptr)}};
}

OrderedJson ToJson(const LoadPoint& point, const LoadRecord& record, const std::vector<BenchVariant>& modes) {
  return {{"load", LoadName(point)},
          {"mode", modes[record.mode].RowName()},
          {"conversation", record.conversation},
          {"turn", record.turn},
          {"code", absl::StatusCodeToString(record.status.code())},
          {"planned_s", record.planned},
          {"sent_s", record.sent},
          {"first_token_s", NumberOrNull(record.first_token)},
          {"ended_s", NumberOrNull(record.ended)},
          {"prompt_tokens", record.prompt_tokens},
          {"output_tokens", record.output_tokens},
          {"chunks", record.chunks},
          {"chunk_hits", record.chunk_hits},
          {"other_anchor", record.other_anchor},
          {"recomputed_tokens", record.recomputed_tokens},
          {"matches", record.matches}};
}

std::string FormatLoadTable(const LoadRun& run, const std::vector<BenchVariant>& modes) {
  std::vector<LoadCells> lines = {
      {"mode", "load", "answered", "TTFT", "TTFT", "TTFT", "token", "token", "e2e", "answers", "goodput",
       "chunk", "recom-"},
      {"", "", "", "p50", "p95", "p99", "p50", "p99", "p95", "per s", "per s", "hits", "puted"}};
  for (const LoadPoint& point : run.points) lines.push_back(CellsOf(point, modes));
  std::array<size_t, kLoadColumns> widths = {};
  for (const LoadCells& cells : lines) {
    for (size_t i = 0; i < kLoadColumns; ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string table;
  for (const LoadCells& cells : lines) {
    std::string line;
    for (size_t i = 0; i < kLoadColumns; ++i) {
      const int width = static_cast<int>(widths[i]);
      absl::StrAppendFormat(&line, "%s%*s", i == 0 ? "" : "  ", i < 2 ? -width : width, cells[i]);
    }
    absl::StrAppend(&table, line, "\n");
  }
  std::string notes;
  for (const LoadPoint& point : run.points) absl::StrAppend(&notes, ErrorLine(point, modes));
  for (const std::string& line : HighestRateLines(run, modes)) absl::StrAppend(&notes, line, "\n");
  return notes.empty() ? table : absl::StrCat(table, "\n", notes);
}

std::vector<std::string> HighestRateLines(const LoadRun& run, const std::vector<BenchVariant>& modes) {
  std::vector<std::string> lines;
  for (const HighestRate& highest : run.highest) {
    std::string line =
        absl::StrFormat("%s: p95 of TTFT stays within %s up to %s %s/s", modes[highest.mode].RowName(),
                        HumanSeconds(highest.limit), HumanNumber(highest.highest), BegunBy(run));
    absl::StrAppend(&line, highest.refused ? absl::StrCat(", and not at ", HumanNumber(*highest.refused))
                                           : " at least: no rate was found that is too much");
    const HighestRate& first = run.highest.front();
    if (highest.mode != first.mode && first.highest > 0) {
      absl::StrAppendFormat(&line, ": %.2fx of %s", highest.highest / first.highest,
                            modes[first.mode].RowName());
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace kvblend::server::cli
