#include "server/cli/load/line_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "server/cli/terminal.h"

namespace kvblend::server::cli {
namespace {

// In units of the drawing.
constexpr double kWidth = 640, kHeight = 330;
constexpr double kLeft = 70, kRight = 110, kTop = 34, kBottom = 46;
constexpr double kNameHeight = 14;
constexpr int kNumColours = 8;

constexpr double kLogarithmicFrom = 20;

/// 1, 2 or 5 times a power of ten.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

class ChartAxis {
 public:
  ChartAxis(const std::vector<double>& values, double from, double to)
      : ticks_(TicksFor(values)), from_(from), to_(to) {}

  double At(double value) const {
    const double first = Scaled(ticks_.values.front()), last = Scaled(ticks_.values.back());
    return from_ + (to_ - from_) * (Scaled(value) - first) / (last - first);
  }
  const std::vector<double>& ticks() const { return ticks_.values; }

 private:
  double Scaled(double value) const { return ticks_.logarithmic ? std::log10(value) : value; }

  AxisTicks ticks_;
  double from_;
  double to_;
};

std::string ChartLabel(double value, bool is_seconds) {
  if (!is_seconds || value == 0) return HumanNumber(value);
  return value < 1 ? absl::StrCat(HumanNumber(1e3 * value), " ms") : absl::StrCat(HumanNumber(value), " s");
}

/// Heights of the series' names: next to their last points, moved apart where they would overlap.
std::vector<double> NameHeights(const std::vector<double>& wanted) {
  std::vector<size_t> order(wanted.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return wanted[a] < wanted[b]; });
  std::vector<double> heights = wanted;
  for (size_t i = 1; i < order.size(); ++i) {
    heights[order[i]] = std::max(heights[order[i]], heights[order[i - 1]] + kNameHeight);
  }
  return heights;
}

}  // namespace

std::string HtmlEscaped(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

AxisTicks TicksFor(const std::vector<double>& values) {
  if (values.empty()) return {.values = {0, 1}};
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  AxisTicks axis{.logarithmic = *least > 0 && *most / *least > kLogarithmicFrom};
  if (!axis.logarithmic) {
    const double top = *most > 0 ? *most : 1;
    const double step = RoundStep(top / 5);
    const auto count = static_cast<int64_t>(std::ceil(top / step - 1e-9));
    for (int64_t i = 0; i <= count; ++i) axis.values.push_back(static_cast<double>(i) * step);
    return axis;
  }
  double tick = RoundStep(*least);
  while (tick > *least * (1 + 1e-9)) tick = RoundStep(tick / 2.6);  // the next lower one
  axis.values.push_back(tick);
  while (axis.values.back() < *most) axis.values.push_back(RoundStep(axis.values.back() * 1.9));
  return axis;
}

std::string DrawChart(const LineChart& chart) {
  std::vector<double> xs, ys;
  for (const ChartSeries& series : chart.series) {
    for (const auto& [x, y] : series.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  if (xs.empty()) return "";
  const ChartAxis x_axis(xs, kLeft, kWidth - kRight);
  const ChartAxis y_axis(ys, kHeight - kBottom, kTop);
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n<text class=\"title\" x=\"%g\" "
      "y=\"18\">%s</text>\n",
      kWidth, kHeight, HtmlEscaped(chart.title), kLeft, HtmlEscaped(chart.title));
  for (const double tick : y_axis.ticks()) {
    const double y = y_axis.At(tick);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\"/>"
                          "<text class=\"tick\" text-anchor=\"end\" x=\"%g\" y=\"%.1f\">%s</text>\n",
                          kLeft, y, kWidth - kRight, y, kLeft - 8, y + 4,
                          ChartLabel(tick, chart.y_is_seconds));
  }
  for (const double tick : x_axis.ticks()) {
    const double x = x_axis.At(tick);
    absl::StrAppendFormat(&svg,
                          "<line class=\"grid\" x1=\"%.1f\" y1=\"%g\" x2=\"%.1f\" y2=\"%g\"/>"
                          "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%g\">%s</text>\n",
                          x, kTop, x, kHeight - kBottom, x, kHeight - kBottom + 16, ChartLabel(tick, false));
  }
  absl::StrAppendFormat(&svg, "<text class=\"label\" text-anchor=\"middle\" x=\"%g\" y=\"%g\">%s</text>\n",
                        (kLeft + kWidth - kRight) / 2, kHeight - 8, HtmlEscaped(chart.x_label));
  absl::StrAppendFormat(
      &svg,
      "<text class=\"label\" text-anchor=\"middle\" transform=\"translate(14 %g) rotate(-90)\">%s</text>\n",
      (kTop + kHeight - kBottom) / 2, HtmlEscaped(chart.y_label));

  std::vector<double> name_heights;
  for (const ChartSeries& series : chart.series) {
    const auto last = std::max_element(series.points.begin(), series.points.end());
    name_heights.push_back(last == series.points.end() ? kHeight : y_axis.At(last->second) + 4);
  }
  name_heights = NameHeights(name_heights);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    std::vector<std::pair<double, double>> points = chart.series[i].points;
    if (points.empty()) continue;
    std::sort(points.begin(), points.end());
    const std::string colour = absl::StrCat("s", i % kNumColours);
    const std::string name = HtmlEscaped(chart.series[i].name);
    std::string line, dots;
    for (const auto& [x, y] : points) {
      absl::StrAppendFormat(&line, "%s%.1f,%.1f", line.empty() ? "" : " ", x_axis.At(x), y_axis.At(y));
      absl::StrAppendFormat(
          &dots, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%s: %s at %s</title></circle>",
          colour, x_axis.At(x), y_axis.At(y), name, ChartLabel(y, chart.y_is_seconds), HumanNumber(x));
    }
    absl::StrAppendFormat(&svg, "<polyline class=\"%s\" points=\"%s\"/>%s", colour, line, dots);
    absl::StrAppendFormat(&svg, "<text class=\"name %s\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", colour,
                          x_axis.At(points.back().first) + 10, name_heights[i], name);
  }
  return svg + "</svg>\n";
}

}  // namespace kvblend::server::cli
