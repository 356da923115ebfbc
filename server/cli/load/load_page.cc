#include "server/cli/load/load_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/cli/load/line_chart.h"
#include "server/cli/load/load_report.h"

namespace kvblend::server::cli {
namespace {

constexpr char kPageHead[] = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvblend bench serve</title>
<style>
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1c2026; --faint: #667080; --grid: #dfe3e8;
  --c0: #3b6fd4; --c1: #c2410c; --c2: #0f7b57; --c3: #8b3fb8; --c4: #a16207; --c5: #be185d; --c6: #0e7490; --c7: #57534e; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171c; --card: #1c2027; --ink: #e6e9ee; --faint: #97a1b0; --grid: #2f3641;
    --c0: #7ba7f7; --c1: #fb923c; --c2: #4ade9f; --c3: #c897f0; --c4: #eab84b; --c5: #f472b6; --c6: #5ccfe6; --c7: #b8b2ac; }
}
body { margin: 2rem auto; max-width: 86rem; padding: 0 1.25rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; }
p { color: var(--faint); margin: .25rem 0; }
code { font: 13px/1.5 ui-monospace, monospace; overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(34rem, 100%), 1fr)); gap: 1rem; margin: 1.5rem 0; }
.charts > div { background: var(--card); border-radius: 8px; padding: .75rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--faint); font: 12px system-ui, sans-serif; }
svg .title { fill: var(--ink); font-weight: 600; font-size: 14px; }
svg .grid { stroke: var(--grid); stroke-width: 1; }
polyline { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; }
circle { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
svg .name { fill: currentColor; font-weight: 600; }
.s0 { color: var(--c0); } .s1 { color: var(--c1); } .s2 { color: var(--c2); } .s3 { color: var(--c3); }
.s4 { color: var(--c4); } .s5 { color: var(--c5); } .s6 { color: var(--c6); } .s7 { color: var(--c7); }
.table { overflow-x: auto; background: var(--card); border-radius: 8px; padding: .75rem 1rem; }
pre { margin: 0; font: 13px/1.5 ui-monospace, monospace; }
</style>
</head>
<body>
)";

using FigureOf = std::function<double(const LoadSummary&)>;

std::string ChartOf(const LoadRun& run, const std::vector<BenchVariant>& modes, bool against_clients,
                    const std::string& title, const std::string& y_label, bool y_is_seconds,
                    const FigureOf& figure) {
  LineChart chart{.title = title,
                  .x_label = against_clients ? "clients" : absl::StrCat(BegunBy(run), " per second, planned"),
                  .y_label = y_label,
                  .y_is_seconds = y_is_seconds};
  for (const BenchVariant& mode : modes) chart.series.push_back({.name = mode.RowName(), .points = {}});
  for (const LoadPoint& point : run.points) {
    // A measurement that was cut off says nothing about the requests that it did not wait for.
    if (point.cut_off()) continue;
    if (point.kind != (against_clients ? LoadKind::kClients : LoadKind::kRate)) continue;
    const double y = figure(point.summary);
    if (!std::isfinite(y)) continue;
    chart.series[point.mode].points.emplace_back(against_clients ? point.clients : point.rate, y);
  }
  const std::string drawn = DrawChart(chart);
  return drawn.empty() ? "" : absl::StrCat("<div>", drawn, "</div>\n");
}

}  // namespace

std::string LoadPage(const LoadRun& run, const std::vector<BenchVariant>& modes, const std::string& title,
                     const std::string& command) {
  const bool has_level = std::any_of(run.points.begin(), run.points.end(), [](const LoadPoint& point) {
    return point.summary.goodput != point.summary.answers_per_second;
  });
  std::string charts;
  for (const bool against_clients : {false, true}) {
    const auto add = [&](const std::string& name, const std::string& unit, bool seconds,
                         const FigureOf& figure) {
      absl::StrAppend(&charts, ChartOf(run, modes, against_clients, name, unit, seconds, figure));
    };
    add("Time to first token, p95", "time", true, [](const LoadSummary& s) { return s.ttft.p95; });
    add("Time to first token, median", "time", true, [](const LoadSummary& s) { return s.ttft.p50; });
    add("Between tokens, p99", "time", true, [](const LoadSummary& s) { return s.inter_token.p99; });
    add("Whole answer, p95", "time", true, [](const LoadSummary& s) { return s.latency.p95; });
    add("Answers", "per second", false, [](const LoadSummary& s) { return s.answers_per_second; });
    if (has_level) {
      add("Answers within the service level", "per second", false,
          [](const LoadSummary& s) { return s.goodput; });
    }
  }
  std::string page = absl::StrCat(kPageHead, "<h1>Serving under load</h1>\n<p>", HtmlEscaped(title),
                                  "</p>\n<p><code>", HtmlEscaped(command), "</code></p>\n");
  for (const std::string& line : HighestRateLines(run, modes)) {
    absl::StrAppend(&page, "<p>", HtmlEscaped(line), "</p>\n");
  }
  if (!charts.empty()) absl::StrAppend(&page, "<div class=\"charts\">\n", charts, "</div>\n");
  absl::StrAppend(&page, "<div class=\"table\"><pre>", HtmlEscaped(FormatLoadTable(run, modes)),
                  "</pre></div>\n</body>\n</html>\n");
  return page;
}

}  // namespace kvblend::server::cli
