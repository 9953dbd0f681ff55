#include "framework/report/chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "framework/files.h"
#include "kernels/check.h"

namespace capstan::framework {

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const int bytes = utf8_character(text, at);
    const unsigned char c = static_cast<unsigned char>(text[at]);
    if (bytes == 0 || c < 0x20 || c == 0x7f) out += c == '\n' || c == '\t' ? " " : "\xEF\xBF\xBD";
    else if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else if (c == '\'') out += "&#39;";
    else out += text.substr(at, std::size_t(bytes));
    at += std::size_t(std::max(bytes, 1));
  }
  return out;
}

std::string number_text(double value, int digits) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e15)) return fmt::format("{:.{}g}", value, std::min(digits, 3));
  if (size >= 1e4 || value == std::floor(value)) {  // thousands apart
    std::string text = fmt::format("{:.0f}", size), out;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (i > 0 && (text.size() - i) % 3 == 0) out += ",";
      out += text[i];
    }
    return (value < 0 && out != "0" ? "−" : "") + out;
  }
  const int before = std::max(1, int(std::floor(std::log10(size))) + 1);
  return fmt::format("{}{:.{}f}", value < 0 ? "−" : "", size, std::max(0, digits - before + (size < 1 ? 1 : 0)));
}

std::vector<double> nice_ticks(double low, double high, int wanted) {
  if (!(high > low)) {
    const double around = low == 0 ? 1 : std::abs(low) * 0.1;
    low -= around;
    high += around;
  }
  const double raw = (high - low) / std::max(1, wanted), power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  for (double at = first;; at += 1) {
    ticks.push_back(at == 0 ? 0 : at * step);
    if (at * step >= high - 1e-9 * step) return ticks;
  }
}

std::vector<double> log_ticks(double low, double high) {
  const double first = std::floor(std::log10(low) + 1e-9), last = std::ceil(std::log10(high) - 1e-9);
  const double step = std::max(1.0, std::ceil((last - first) / 6));
  std::vector<double> ticks;
  for (double power = first; power <= std::max(last, first + 1) + step - 1; power += step) {
    ticks.push_back(std::pow(10, power));
    if (last - first <= 2)
      for (const double factor : {2.0, 5.0}) ticks.push_back(factor * std::pow(10, power));
  }
  const auto above = std::find_if(ticks.begin() + 1, ticks.end(), [&](double t) { return t >= high * (1 - 1e-9); });
  if (above != ticks.end()) ticks.erase(above + 1, ticks.end());
  while (ticks.size() > 2 && ticks[1] <= low * (1 + 1e-9)) ticks.erase(ticks.begin());
  return ticks;
}

Interval wilson_interval(std::int64_t k, std::int64_t n) {
  CAPSTAN_CHECK(n > 0 && k >= 0 && k <= n, "{} of {}", k, n);
  constexpr double z = 1.959963984540054;
  const double count = double(n), share = double(k) / count, scale = 1 / (1 + z * z / count);
  const double centre = scale * (share + z * z / (2 * count));
  const double half = scale * z * std::sqrt(share * (1 - share) / count + z * z / (4 * count * count));
  return {k == 0 ? 0 : std::max(0.0, centre - half), k == n ? 1 : std::min(1.0, centre + half)};
}

// ---- line charts ----------------------------------------------------------------------------------------------------

namespace {

constexpr double chart_width = 400, chart_height = 250, left_edge = 50, right_edge = 378, top_edge = 26,
                 bottom_edge = 212;

struct Scale {
  double low = 0, high = 1, begin = 0, end = 1;
  bool logarithmic = false;
  std::vector<double> ticks;

  double at(double value) const {
    const auto place = [&](double v) { return logarithmic ? std::log(v) : v; };
    const double share = (place(value) - place(low)) / (place(high) - place(low));
    return begin + (end - begin) * share;
  }
};

bool is_shown(const LineChart& chart, const ChartPoint& p) {
  return std::isfinite(p.x) && std::isfinite(p.y) && (!chart.x_log || p.x > 0) && (!chart.y_log || p.y > 0);
}

Interval range_of(const LineChart& chart, double ChartPoint::*field) {
  Interval range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& p : line.points)
      if (is_shown(chart, p)) range = {std::min(range.low, p.*field), std::max(range.high, p.*field)};
  return range;
}

/// The data fill the width; ticks lie within. A single value gets room on both sides.
Scale x_scale(const LineChart& chart, Interval range) {
  Scale scale{range.low, range.high, left_edge, right_edge, chart.x_log, chart.x_ticks};
  if (range.low == range.high) {
    const double around = range.low == 0 ? 1 : std::abs(range.low) * 0.5;
    scale.low -= around;
    scale.high += around;
  }
  if (scale.ticks.empty())
    scale.ticks = chart.x_log ? log_ticks(scale.low, scale.high) : nice_ticks(scale.low, scale.high, 5);
  std::erase_if(scale.ticks, [&](double t) { return t < scale.low || t > scale.high; });
  return scale;
}

Scale y_scale(const LineChart& chart, Interval range) {
  if (chart.from_zero && !chart.y_log) range = {std::min(0.0, range.low), std::max(range.high, 1e-12)};
  Scale scale{0, 1, bottom_edge, top_edge, chart.y_log, {}};
  scale.ticks = chart.y_log ? log_ticks(range.low, range.high) : nice_ticks(range.low, range.high, 4);
  scale.low = scale.ticks.front();
  scale.high = scale.ticks.back();
  return scale;
}

/// All with the decimals that the finest of them needs.
std::vector<std::string> tick_texts(const std::vector<double>& ticks, bool logarithmic) {
  double largest = 0;
  int decimals = 0;
  for (const double tick : ticks) {
    largest = std::max(largest, std::abs(tick));
    for (int more = decimals; more <= 6; ++more) {
      const double scaled = tick * std::pow(10, more);
      if (std::abs(scaled - std::round(scaled)) > 1e-6) decimals = std::min(6, more + 1);
    }
  }
  const bool is_plain = largest >= 1e-3 && largest < 1e15 && decimals <= 4;
  std::vector<std::string> texts;
  for (const double tick : ticks)
    texts.push_back(is_plain && decimals > 0 && !logarithmic
                        ? fmt::format("{}{:.{}f}", tick < 0 ? "−" : "", std::abs(tick), decimals)
                    : logarithmic && tick < 1e4 ? fmt::format("{:g}", tick)
                                                : number_text(tick, 3));
  return texts;
}

std::string axes(const LineChart& chart, const Scale& x, const Scale& y) {
  std::string out;
  const std::vector<std::string> y_texts = tick_texts(y.ticks, chart.y_log), x_texts = tick_texts(x.ticks, chart.x_log);
  for (std::size_t i = 0; i < y.ticks.size(); ++i)
    out += fmt::format(
        "<path class=\"grid\" d=\"M{:.1f} {:.1f}H{:.1f}\"/><text class=\"tick\" text-anchor=\"end\" x=\"{:.1f}\" "
        "y=\"{:.1f}\">{}</text>\n",
        left_edge, y.at(y.ticks[i]), right_edge, left_edge - 5, y.at(y.ticks[i]) + 4, y_texts[i]);
  double last = -100;
  for (std::size_t i = 0; i < x.ticks.size(); ++i) {
    const double at = x.at(x.ticks[i]);
    out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}v4\"/>", at, bottom_edge);
    if (at - last < 36) continue;  // no room for its number
    last = at;
    out += fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", at,
                       bottom_edge + 16, x_texts[i]);
  }
  out += fmt::format("<path class=\"axis\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left_edge, bottom_edge, right_edge);
  out += fmt::format("<text class=\"name\" x=\"4\" y=\"13\">{}</text>", escaped(chart.y_title));
  return out + fmt::format("<text class=\"name\" text-anchor=\"end\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", right_edge,
                           chart_height - 5, escaped(chart.x_title));
}

std::string marker(const ChartLine& line, double x, double y, const std::string& hover) {
  return fmt::format("<circle class=\"m{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.2\"><title>{}</title></circle>\n",
                     line.look % 9, x, y, escaped(hover));
}

std::string line_shape(const LineChart& chart, const ChartLine& line, const Scale& x, const Scale& y) {
  std::string path, markers;
  bool down = false;  // the pen
  std::size_t alone = 0;
  for (std::size_t i = 0; i < line.points.size(); ++i) {
    const ChartPoint& p = line.points[i];
    if (!is_shown(chart, p)) {
      down = false;
      continue;
    }
    const bool next = i + 1 < line.points.size() && is_shown(chart, line.points[i + 1]);
    path += fmt::format("{}{:.1f} {:.1f}", down ? "L" : "M", x.at(p.x), y.at(p.y));
    alone = !down && !next;  // a point without neighbours is no line
    down = true;
    if (line.dots || (alone && !line.faint))
      markers += marker(line, x.at(p.x), y.at(p.y),
                        fmt::format("{}: {} at {}", line.name, number_text(p.y, 5), number_text(p.x)));
  }
  std::string out;
  if (line.joined && !path.empty())
    out = fmt::format("<path class=\"l{}{}\" d=\"{}\"/>\n", line.look % 9, line.faint ? " faint" : "", path);
  return out + markers;
}

/// The letters at the lines' ends, apart from each other.
std::string end_letters(const LineChart& chart, const Scale& x, const Scale& y) {
  struct Letter {
    const ChartLine* line;
    double x, y;
  };
  std::vector<Letter> letters;
  for (const ChartLine& line : chart.lines) {
    if (line.faint || line.letter.empty() || !line.joined) continue;
    const auto last =
        std::find_if(line.points.rbegin(), line.points.rend(), [&](const ChartPoint& p) { return is_shown(chart, p); });
    if (last != line.points.rend()) letters.push_back({&line, x.at(last->x) + 6, y.at(last->y) + 4});
  }
  std::stable_sort(letters.begin(), letters.end(), [](const Letter& a, const Letter& b) { return a.y < b.y; });
  // Nearest places at least 12 apart: of neighbours that are too near, a run of letters around their mean place.
  constexpr double apart = 12;
  struct Run {
    double sum, count;
  };
  std::vector<Run> runs;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    runs.push_back({letters[i].y - apart * double(i), 1});
    for (std::size_t n = runs.size(); n > 1; n = runs.size()) {
      Run &before = runs[n - 2], &last = runs[n - 1];
      if (before.sum / before.count <= last.sum / last.count) break;
      before = {before.sum + last.sum, before.count + last.count};
      runs.pop_back();
    }
  }
  std::size_t next = 0;
  for (const Run& run : runs)
    for (double i = 0; i < run.count; i += 1, ++next) letters[next].y = run.sum / run.count + apart * double(next);
  double below = bottom_edge + 4;
  for (std::size_t i = letters.size(); i-- > 0; below -= apart) letters[i].y = std::min(letters[i].y, below);
  std::string out;
  for (const Letter& letter : letters)
    out += fmt::format("<text class=\"t{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", letter.line->look % 9, letter.x,
                       letter.y, escaped(letter.line->letter));
  return out;
}

}  // namespace

std::string line_chart(const LineChart& chart) {
  const std::string head = fmt::format("<figure class=\"chart\"><figcaption>{}</figcaption>\n", escaped(chart.title));
  const Interval xs = range_of(chart, &ChartPoint::x), ys = range_of(chart, &ChartPoint::y);
  if (xs.low > xs.high) return head + "<p class=\"none\">Nothing was measured.</p></figure>\n";
  const Scale x = x_scale(chart, xs), y = y_scale(chart, ys);
  std::string out =
      head + fmt::format(
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fit\" role=\"img\" viewBox=\"0 0 {} {}\">"
                 "<title>{}</title><desc>{} over {}; from {} to {}, {} line(s)</desc>\n",
                 chart_width, chart_height, escaped(chart.title), escaped(chart.y_title), escaped(chart.x_title),
                 number_text(ys.low), number_text(ys.high), chart.lines.size());
  out += axes(chart, x, y);
  for (const bool faint : {true, false})
    for (const ChartLine& line : chart.lines)
      if (line.faint == faint) out += line_shape(chart, line, x, y);
  return out + end_letters(chart, x, y) + "</svg></figure>\n";
}

std::string chart_legend(const std::vector<ChartLine>& lines) {
  std::string out = "<p class=\"legend\">";
  for (const ChartLine& line : lines)
    out += fmt::format(
        "<span><svg xmlns=\"http://www.w3.org/2000/svg\" aria-hidden=\"true\" width=\"34\" height=\"10\" "
        "viewBox=\"0 0 34 10\"><path class=\"l{0}\" d=\"M1 5H33\"/></svg> <b class=\"k{0}\">{1}</b> {2}</span>\n",
        line.look % 9, escaped(line.letter), escaped(line.name));
  return out + "</p>\n";
}

// ---- heat maps ------------------------------------------------------------------------------------------------------

namespace {

constexpr int levels = 13;

int level_of(double value, double low, double high) {
  const double share = high > low ? (value - low) / (high - low) : 0;
  return int(std::lround(std::clamp(share, 0.0, 1.0) * (levels - 1)));
}

/// Cells of one level as one path; neighbours in a row are one rectangle.
struct LevelPaths {
  std::array<std::string, levels> paths;

  void add_row(const double* values, std::int64_t count, double left, double top, double width, double height,
               double low, double high) {
    for (std::int64_t begin = 0, end = 0; begin < count; begin = end) {
      end = begin + 1;
      if (!std::isfinite(values[begin])) continue;
      const int level = level_of(values[begin], low, high);
      while (end < count && std::isfinite(values[end]) && level_of(values[end], low, high) == level) ++end;
      const double length = double(end - begin) * width;
      paths[std::size_t(level)] +=
          fmt::format("M{:g} {:g}h{:g}v{:g}h{:g}z", left + double(begin) * width, top, length, height, -length);
    }
  }
  std::string text() const {
    std::string out;
    for (int level = 0; level < levels; ++level)
      if (!paths[std::size_t(level)].empty())
        out += fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", shade(double(level) / (levels - 1)),
                           paths[std::size_t(level)]);
    return out;
  }
};

/// Names of the columns, under the cells.
std::string column_names(const HeatMap& map, double left, double top) {
  std::string out;
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    const double x = left + (double(c) + 0.5) * map.cell_width;
    out += map.slanted ? fmt::format(
                             "<text class=\"tick\" text-anchor=\"end\" transform=\"translate({:g} {:g}) "
                             "rotate(-90)\">{}</text>",
                             x + 4, top + 5, escaped(map.columns[c]))
                       : fmt::format("<text class=\"tick\" text-anchor=\"middle\" x=\"{:g}\" y=\"{:g}\">{}</text>", x,
                                     top + 14, escaped(map.columns[c]));
  }
  return out + "\n";
}

std::string cell_texts(const HeatMap& map, std::size_t row, double left, double y) {
  std::string out = fmt::format("<text class=\"cell\" y=\"{:g}\">", y);
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    const std::size_t at = row * map.columns.size() + c;
    if (!std::isfinite(map.values[at])) continue;
    const bool is_dark = level_of(map.values[at], map.low, map.high) >= 9;
    out += fmt::format("<tspan x=\"{:g}\"{}>{}</tspan>", left + (double(c) + 0.5) * map.cell_width,
                       is_dark ? " class=\"w\"" : "", escaped(map.texts[at]));
  }
  return out + "</text>\n";
}

std::size_t characters(const std::string& text) {
  return std::size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::size_t longest(const std::vector<std::string>& texts) {
  std::size_t most = 0;
  for (const std::string& text : texts) most = std::max(most, characters(text));
  return most;
}

}  // namespace

std::string shade(double t) {
  struct Rgb {
    double r, g, b;
  };
  constexpr Rgb stops[] = {{240, 244, 250}, {120, 175, 215}, {8, 48, 107}};
  const double at = std::clamp(t, 0.0, 1.0) * 2, w = at - std::min(1.0, std::floor(at));
  const Rgb &a = stops[at >= 1 ? 1 : 0], &b = stops[at >= 1 ? 2 : 1];
  const auto mix = [w](double from, double to) { return int(std::lround(from + w * (to - from))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(a.r, b.r), mix(a.g, b.g), mix(a.b, b.b));
}

std::string heat_map(const HeatMap& map) {
  const std::size_t columns = map.columns.size(), rows = map.rows.size();
  CAPSTAN_CHECK(map.values.size() == rows * columns && (map.texts.empty() || map.texts.size() == rows * columns) &&
                    (map.hover.empty() || map.hover.size() == rows * columns),
                "{} × {} cells, {} values", rows, columns, map.values.size());
  const double left = 10 + 6.6 * double(std::max(longest(map.rows), characters(map.row_title))),
               top = map.row_title.empty() ? 3 : 20;
  const double below = map.slanted ? 8 + 6.2 * double(longest(map.columns)) : 20;
  const double bottom = top + double(rows) * map.cell_height,
               width = std::max(left + double(columns) * map.cell_width,
                                left + 6.6 * double(characters(map.column_title))) +
                       4,
               height = bottom + below + (map.column_title.empty() ? 0 : 16);
  std::string out = fmt::format(
      "<figure class=\"map\"><figcaption>{}</figcaption>\n{}<div class=\"scroll\"><svg "
      "xmlns=\"http://www.w3.org/2000/svg\" class=\"own\" role=\"img\" width=\"{:g}\" height=\"{:g}\" "
      "viewBox=\"0 0 {:g} {:g}\"><title>{}</title><desc>{} rows ({}) by {} columns ({})</desc>\n",
      escaped(map.title), map.scale.empty() ? "" : heat_scale(map.scale, map.low, map.high), width, height, width,
      height, escaped(map.title), rows, escaped(map.row_title), columns, escaped(map.column_title));
  LevelPaths cells;
  for (std::size_t r = 0; r < rows; ++r)
    cells.add_row(map.values.data() + r * columns, std::int64_t(columns), left, top + double(r) * map.cell_height,
                  map.cell_width, map.cell_height, map.low, map.high);
  out += cells.text();
  for (std::size_t r = 0; r < rows; ++r) {
    const double y = top + (double(r) + 0.5) * map.cell_height + 4;
    out += fmt::format("<text class=\"tick\" text-anchor=\"end\" x=\"{:g}\" y=\"{:g}\">{}</text>", left - 5, y,
                       escaped(map.rows[r]));
    if (!map.texts.empty()) out += cell_texts(map, r, left, y);
    for (std::size_t c = 0; c < columns && !map.hover.empty(); ++c)
      if (std::isfinite(map.values[r * columns + c]))
        out += fmt::format(
            "<rect class=\"over\" x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\"><title>{}</title></rect>",
            left + double(c) * map.cell_width, top + double(r) * map.cell_height, map.cell_width, map.cell_height,
            escaped(map.hover[r * columns + c]));
  }
  out += column_names(map, left, bottom);
  out += fmt::format("<text class=\"name\" text-anchor=\"end\" x=\"{:g}\" y=\"13\">{}</text>", left - 5,
                     escaped(map.row_title));
  out += fmt::format("<text class=\"name\" x=\"{:g}\" y=\"{:g}\">{}</text></svg></div>\n", left, height - 4,
                     escaped(map.column_title));
  if (!map.note.empty()) out += fmt::format("<p class=\"note\">{}</p>\n", escaped(map.note));
  return out + "</figure>\n";
}

std::string heat_scale(const std::string& what, double low, double high) {
  std::string out = fmt::format(
      "<p class=\"legend\"><span>{} {} <svg xmlns=\"http://www.w3.org/2000/svg\" aria-hidden=\"true\" width=\"{}\" "
      "height=\"12\" viewBox=\"0 0 {} 12\">",
      escaped(what), number_text(low, 3), levels * 10, levels * 10);
  for (int level = 0; level < levels; ++level)
    out += fmt::format("<path fill=\"{}\" d=\"M{} 0h10v12h-10z\"/>", shade(double(level) / (levels - 1)), level * 10);
  return out + fmt::format("</svg> {}</span></p>\n", number_text(high, 3));
}

std::string small_map(const std::string& title, std::int64_t n, const std::vector<double>& values, double low,
                      double high) {
  CAPSTAN_CHECK(std::int64_t(values.size()) == n * n, "{} values of {} × {}", values.size(), n, n);
  LevelPaths cells;
  for (std::int64_t row = 0; row < n; ++row) cells.add_row(values.data() + row * n, n, 0, double(row), 1, 1, low, high);
  return fmt::format(
             "<figure class=\"small\"><svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fit\" role=\"img\" "
             "shape-rendering=\"crispEdges\" viewBox=\"0 0 {} {}\"><title>{}</title>\n",
             n, n, escaped(title)) +
         cells.text() + fmt::format("</svg><figcaption>{}</figcaption></figure>\n", escaped(title));
}

}  // namespace capstan::framework
