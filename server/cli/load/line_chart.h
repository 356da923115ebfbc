// Line charts as SVG, for pages without scripts. Colours come from the page: classes s0 to s7 colour series
// in order. Pure functions; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvblend::server::cli {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // finite; drawn in the order of x
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool y_is_seconds = false;  // labels as times
  std::vector<ChartSeries> series = {};
};

/// Where the labels of an axis stand, ascending; the first and the last enclose all values.
struct AxisTicks {
  std::vector<double> values = {};
  bool logarithmic = false;
};
/// Logarithmic (1, 2, 5 of each power of ten) where positive values span more than a factor of 20, else from
/// 0 in round steps. All finite; no values: an axis from 0 to 1.
AxisTicks TicksFor(const std::vector<double>& values);

/// An <svg> element with axes, grid, lines, a dot with its figures at every point, and each series' name at
/// its end. Empty when no series has a point.
std::string DrawChart(const LineChart& chart);

/// For text in HTML and its attributes.
std::string HtmlEscaped(const std::string& text);

}  // namespace kvblend::server::cli
