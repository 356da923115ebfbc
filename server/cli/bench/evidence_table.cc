#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "server/cli/bench/bench_report.h"

namespace kvblend::server::cli {
namespace {

/// "0.0757 [0.0512, 0.1023]"; `unit` stands behind the figure alone.
std::string WithInterval(const Estimate& estimate, int decimals, std::string_view unit = "") {
  if (!std::isfinite(estimate.value)) return "-";
  std::string text = absl::StrFormat("%.*f%s", decimals, estimate.value, unit);
  if (std::isfinite(estimate.interval.low) && std::isfinite(estimate.interval.high)) {
    absl::StrAppendFormat(&text, " [%.*f, %.*f]", decimals, estimate.interval.low, decimals,
                          estimate.interval.high);
  }
  return text;
}

/// Columns as wide as they need, the first one aligned left.
std::string Aligned(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const auto& cells : lines) {
    for (size_t i = 0; i < cells.size(); ++i) widths[i] = std::max(widths[i], cells[i].size());
  }
  std::string table;
  for (const auto& cells : lines) {
    std::string line = absl::StrFormat("%-*s", static_cast<int>(widths[0]), cells[0]);
    for (size_t i = 1; i < cells.size(); ++i) {
      absl::StrAppendFormat(&line, "  %*s", static_cast<int>(widths[i]), cells[i]);
    }
    absl::StrAppend(&table, absl::StripTrailingAsciiWhitespace(line), "\n");
  }
  return table;
}

std::string DivergenceTable(const std::vector<BenchRow>& rows) {
  std::vector<std::vector<std::string>> lines = {{"row", "KL mean [95%]"}};
  if (rows.front().comparison) lines[0].push_back(absl::StrCat("against ", rows.front().comparison->against));
  for (const BenchRow& row : rows) {
    std::vector<std::string>& cells = lines.emplace_back();
    cells = {row.variant.RowName(), WithInterval(row.kl_mean, 4)};
    if (!row.comparison) continue;
    const bool itself = row.comparison->against == row.variant.RowName();
    cells.push_back(itself ? "-" : WithInterval(row.comparison->kl_ratio, 2, "x"));
  }
  return Aligned(lines);
}

std::string FlipTable(const std::vector<BenchRow>& rows) {
  std::vector<std::vector<std::string>> lines = {{"row", "F1 [95%]", "exact", "lost", "won", "p"}};
  for (const BenchRow& row : rows) {
    const Flips flips = row.flips.value_or(Flips());
    lines.push_back({row.variant.RowName(), WithInterval(row.f1_mean, 3),
                     absl::StrFormat("%.3f", row.exact_match_mean.value), absl::StrCat(flips.lost),
                     absl::StrCat(flips.won), absl::StrFormat("%.2g", flips.p)});
  }
  return Aligned(lines);
}

}  // namespace

std::string FormatEvidence(const std::vector<BenchRow>& rows) {
  std::string text;
  if (rows.empty() || rows.front().num_questions < 2) return text;
  if (std::isfinite(rows.front().kl_mean.value)) absl::StrAppend(&text, "\n", DivergenceTable(rows));
  if (rows.front().flips) absl::StrAppend(&text, "\n", FlipTable(rows));
  return text;
}

}  // namespace kvblend::server::cli
