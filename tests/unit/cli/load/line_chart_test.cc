#include "server/cli/load/line_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvblend::server::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(LineChartTest, AxesEncloseTheirValues) {
  EXPECT_THAT(TicksFor({3, 9}).values, ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_FALSE(TicksFor({3, 9}).logarithmic);
  EXPECT_THAT(TicksFor({}).values, ElementsAre(0, 1));
  const AxisTicks wide = TicksFor({0.3, 70});
  EXPECT_TRUE(wide.logarithmic);
  ASSERT_EQ(wide.values.size(), 9);
  const std::vector<double> expected = {0.2, 0.5, 1, 2, 5, 10, 20, 50, 100};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(wide.values[i], expected[i], 1e-9);
  for (double most = 1e-4; most < 1e6; most *= 1.7) {
    for (const double least : {0.0, most, most / 3, most / 1000}) {
      const AxisTicks axis = TicksFor({most, least});
      EXPECT_LE(axis.values.front(), least * (1 + 1e-9)) << most << " " << least;
      EXPECT_GE(axis.values.back(), most * (1 - 1e-9)) << most << " " << least;
      EXPECT_TRUE(std::is_sorted(axis.values.begin(), axis.values.end()));
      EXPECT_LE(axis.values.size(), 16) << most << " " << least;
    }
  }
}

TEST(LineChartTest, DrawsALinePerSeriesInsideThePicture) {
  const LineChart chart{.title = "<t>",
                        .x_label = "rate",
                        .y_label = "time",
                        .y_is_seconds = true,
                        .series = {{"a&b", {{2, 0.5}, {1, 0.25}}}, {"none", {}}, {"c", {{1, 0.4}}}}};
  const std::string svg = DrawChart(chart);
  EXPECT_THAT(svg, HasSubstr("&lt;t&gt;"));
  EXPECT_THAT(svg, HasSubstr("a&amp;b: 500 ms at 2"));
  EXPECT_THAT(svg, Not(HasSubstr("none")));
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(svg, "<polyline")).size(), 3);
  EXPECT_EQ(std::vector<std::string>(absl::StrSplit(svg, "<circle")).size(), 4);
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  // In the order of x, whatever the order of the points; the larger y is further up.
  const std::string points = std::vector<std::string>(absl::StrSplit(svg, "points=\""))[1];
  double x1, y1, x2, y2;
  ASSERT_EQ(std::sscanf(points.c_str(), "%lf,%lf %lf,%lf", &x1, &y1, &x2, &y2), 4);
  EXPECT_LT(x1, x2);
  EXPECT_GT(y1, y2);
  EXPECT_EQ(DrawChart({.title = "", .x_label = "", .y_label = "", .series = {{"a", {}}}}), "");
}

}  // namespace
}  // namespace kvblend::server::cli
