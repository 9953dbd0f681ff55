// Numbers, axes and charts of capstan report.

#include "framework/report/chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <regex>

#include "framework/report/sections.h"
#include "tests/framework/sound_page.h"
#include "tests/framework/test_folder.h"
#include "tests/support/tensors.h"

namespace capstan::framework {
namespace {

using capstan::testing::expect_parts;
using capstan::testing::expect_sound;
using capstan::testing::fault_of;

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

TEST(ReportChecker, FindsFaults) {
  EXPECT_EQ(fault_of("<a b=\"c\">d &amp; e<br /></a>"), "");
  for (const char* bad :
       {"<a>", "</a>", "<a><b></a></b>", "<a b=c></a>", "a & b", "<a b=\"<\"></a>", "<a b=\"1\" b=\"2\"/>"})
    EXPECT_NE(fault_of(bad), "") << bad;
}

// ---- numbers and axes -----------------------------------------------------------------------------------------------

TEST(ReportNumbers, AreForPeople) {
  EXPECT_EQ(number_text(0), "0");
  EXPECT_EQ(number_text(12345678), "12,345,678");
  EXPECT_EQ(number_text(1000), "1,000");
  EXPECT_EQ(number_text(-1000), "−1,000");
  EXPECT_EQ(number_text(1.26592), "1.266");
  EXPECT_EQ(number_text(0.25), "0.2500");
  EXPECT_EQ(number_text(1.5e-5), "1.5e-05");
  EXPECT_EQ(number_text(nothing), "–");
  EXPECT_EQ(number_text(std::numeric_limits<double>::infinity()), "–");
}

TEST(ReportNumbers, EscapesWhatHtmlReadsOtherwise) {
  EXPECT_EQ(escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(escaped("é 漢 \x01\xff|"), "é 漢 \xEF\xBF\xBD\xEF\xBF\xBD|");
}

TEST(ReportTicks, CoverTheDataAtRoundSteps) {
  std::uint64_t seed = 0;
  for (int i = 0; i < 2000; ++i) {
    const double size = std::pow(10, double(tests::random_bits(++seed, 7) % 20) - 10);
    const double a = (double(tests::random_bits(++seed, 7) % 2001) - 1000) * size;
    const double b = a + double(tests::random_bits(++seed, 7) % 1000) * size;
    for (const int wanted : {1, 4, 6}) {
      const std::vector<double> ticks = nice_ticks(a, b, wanted);
      ASSERT_GE(ticks.size(), 2u);
      ASSERT_LE(ticks.size(), std::size_t(2 * wanted + 3));
      const double step = ticks[1] - ticks[0];
      ASSERT_LE(ticks.front(), a + 1e-6 * step);
      ASSERT_GE(ticks.back(), b - 1e-6 * step);
      const double leading = step / std::pow(10, std::floor(std::log10(step) + 1e-6));
      ASSERT_LT(std::min({std::abs(leading - 1), std::abs(leading - 2), std::abs(leading - 5)}), 1e-6) << step;
    }
  }
}

TEST(ReportTicks, CoverTheDataOnLogarithms) {
  for (const double low : {1e-6, 0.3, 1.0, 1.5, 7.0, 512.0})
    for (const double factor : {1.0, 1.01, 3.0, 40.0, 1e4, 1e9}) {
      const std::vector<double> ticks = log_ticks(low, low * factor);
      ASSERT_GE(ticks.size(), 2u);
      EXPECT_LE(ticks.size(), 14u);
      EXPECT_LE(ticks.front(), low * (1 + 1e-9));
      EXPECT_GE(ticks.back(), low * factor * (1 - 1e-9));
      EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
    }
}

TEST(ReportWilson, SolvesItsEquation) {
  // The bounds are the p with (k/n - p)^2 = z^2 p (1 - p) / n.
  constexpr double z = 1.959963984540054;
  for (const std::int64_t n : {1, 5, 20, 300})
    for (std::int64_t k = 0; k <= n; ++k) {
      const Interval i = wilson_interval(k, n);
      const double share = double(k) / double(n);
      EXPECT_LE(i.low, share);
      EXPECT_GE(i.high, share);
      for (const double p : {i.low, i.high})
        if (p > 0 && p < 1) { EXPECT_NEAR((share - p) * (share - p), z * z * p * (1 - p) / double(n), 1e-12); }
      EXPECT_NEAR(i.low, 1 - wilson_interval(n - k, n).high, 1e-12);
    }
  const Interval none = wilson_interval(0, 10);  // z² / (n + z²)
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.27753279, 1e-7);
}

// ---- charts ---------------------------------------------------------------------------------------------------------

TEST(ReportChart, SurvivesEveryKindOfData) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::vector<ChartPoint>> kinds = {{},
                                                      {{1, 2}},
                                                      {{0, 0}},
                                                      {{1, nothing}},
                                                      {{1, infinity}, {2, 1}, {3, -infinity}, {4, 2}},
                                                      {{1, 5}, {2, 5}, {3, 5}},
                                                      {{1, 1e-30}, {2, 1e30}},
                                                      {{1e9, -3}, {1e9 + 1, 3}}};
  for (const auto& points : kinds)
    for (const bool log : {false, true}) {
      LineChart chart{"a <title>", "x & y", "\"z\"", {{"A", "name <b>", 0, points}}, log, log};
      const std::string text = line_chart(chart);
      expect_sound(text);
      expect_parts(text, {"a &lt;title&gt;"});
      const bool any = std::any_of(points.begin(), points.end(), [&](const ChartPoint& p) {
        return std::isfinite(p.y) && (!log || (p.x > 0 && p.y > 0));
      });
      EXPECT_EQ(text.find("Nothing was measured") == std::string::npos, any);
      EXPECT_EQ(text.find("<desc>") != std::string::npos, any);
    }
}

TEST(ReportChart, PutsPointsWhereTheTicksSay) {
  LineChart chart{"t", "x", "y", {{"A", "n", 0, {{0, 1}, {10, 3}}}}};
  // Width 50 to 378, height 212 to 26; y from 1 to 3.
  expect_parts(line_chart(chart), {"d=\"M50.0 212.0L378.0 26.0\"", ">1.0</text>", ">3.0</text>", ">10</text>"});
}

TEST(ReportChart, HeatMapsHoldNumbersAndLightnessFalls) {
  HeatMap map{
      "title", "row", "column", "", {"r0", "r1"}, {"c0", "c1"}, {0, 0.5, 1, nothing}, {"0/4", "2/4", "4/4", ""}};
  const std::string text = heat_map(map);
  expect_sound(text);
  expect_parts(text, {"0/4", "2/4", "class=\"w\">4/4", "r1", "c1", shade(0), shade(0.5), shade(1)});
  double before = 256;
  for (double t = 0; t <= 1; t += 0.05) {
    const std::string c = shade(t);
    const auto part = [&](std::size_t at) { return double(std::stoi(c.substr(at, 2), nullptr, 16)); };
    const double lightness = 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5);
    EXPECT_LT(lightness, before);
    before = lightness;
  }
}

}  // namespace
}  // namespace capstan::framework
