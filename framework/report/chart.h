#pragma once
// Charts as inline SVG, and the texts of a page: pure functions from data to HTML. Every chart has a title and a description for
// screen readers; colours come from the page's style sheet (report_style.cpp), differ in lightness, and go with letters and dashes,
// so that a chart also reads in grey.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace capstan::framework {

/// For HTML text and quoted attributes. Broken UTF-8 and control characters become U+FFFD.
std::string escaped(std::string_view text);
/// For people: 12,345; 1.234; 1.2e-05. Not finite: "–".
std::string number_text(double value, int digits = 4);

/// Round numbers, about `wanted` of them, of which the first is at most `low` and the last at least `high`.
std::vector<double> nice_ticks(double low, double high, int wanted);
/// The same at 1, 2, 5 times powers of ten, or powers of ten alone where these are many. low > 0.
std::vector<double> log_ticks(double low, double high);

struct Interval {
  double low, high;
};
/// Wilson's 95 % interval of a share of k in n > 0 (Wilson 1927, JASA 22, 209).
Interval wilson_interval(std::int64_t k, std::int64_t n);

struct ChartPoint {
  double x, y;  ///< y not finite: a gap
};

/// One series. Look i takes the i-th colour and dashes.
struct ChartLine {
  std::string letter, name;  ///< the letter stands at the line's end
  int look = 0;
  std::vector<ChartPoint> points;
  bool faint = false;  ///< background of another line: thin, without letter
  bool dots = false;   ///< markers with values to hover over, as well
  bool joined = true;  ///< false: markers only
};

struct LineChart {
  std::string title, x_title, y_title;
  std::vector<ChartLine> lines;
  bool x_log = false, y_log = false;
  std::vector<double> x_ticks = {};  ///< empty: chosen
  bool from_zero = false;            ///< y begins at zero
};
/// A <figure>; without a finite point, one with a sentence in place of the chart.
std::string line_chart(const LineChart& chart);
/// Which letter is what, under the charts that share it.
std::string chart_legend(const std::vector<ChartLine>& lines);

/// Colour of t in [0, 1], the lighter the less.
std::string shade(double t);

struct HeatMap {
  std::string title, row_title, column_title, note;
  std::vector<std::string> rows, columns;
  std::vector<double> values;           ///< [rows, columns]; not finite: no cell
  std::vector<std::string> texts;       ///< in the cells; empty: none
  std::vector<std::string> hover = {};  ///< per cell; empty: none
  double low = 0, high = 1;             ///< of the colours
  double cell_width = 24, cell_height = 20;
  std::string scale = {};  ///< what the colours mean, shown under the title; empty: not shown
  bool slanted = false;    ///< column names stand upright
};
/// A <figure> that scrolls where it is wider than the page.
std::string heat_map(const HeatMap& map);
/// The colours' meaning, from low to high.
std::string heat_scale(const std::string& what, double low, double high);

/// Square of n × n cells, row by row, without names: one of many small ones. The same colours as a heat map.
std::string small_map(const std::string& title, std::int64_t n, const std::vector<double>& values, double low,
                      double high);

}  // namespace capstan::framework
