// Sections of the training: losses, norms and rates over the steps, and what layers say of their positions.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "framework/report/sections.h"
#include "kernels/check.h"

namespace capstan::framework {

namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::size_t raw_points = 300, smooth_points = 150, shown_layers = 9;

using Value = std::function<double(const StepLine&)>;

/// At most about `most` points: of each stretch of steps the least and the greatest value, so that peaks stay.
std::vector<ChartPoint> thinned(const std::vector<StepLine>& steps, const Value& value, std::size_t most) {
  std::vector<ChartPoint> points;
  const std::size_t stretch = steps.size() <= most ? 1 : (2 * steps.size() + most - 1) / most;
  for (std::size_t begin = 0; begin < steps.size(); begin += stretch) {
    std::vector<ChartPoint> found;
    for (std::size_t i = begin; i < std::min(begin + stretch, steps.size()); ++i)
      if (const double y = value(steps[i]); std::isfinite(y)) found.push_back({double(steps[i].step), y});
    if (found.empty()) {
      points.push_back({double(steps[begin].step), nothing});
      continue;
    }
    const auto less = [](const ChartPoint& a, const ChartPoint& b) { return a.y < b.y; };
    auto [least, greatest] = std::minmax_element(found.begin(), found.end(), less);
    if (least > greatest) std::swap(least, greatest);
    points.push_back(*least);
    if (greatest != least) points.push_back(*greatest);
  }
  return points;
}

/// Centred mean over a 25th of the steps, of those that have a value.
std::vector<ChartPoint> smoothed(const std::vector<StepLine>& steps, const Value& value) {
  const std::size_t n = steps.size(), half = n / 50, stride = std::max<std::size_t>(1, n / smooth_points);
  std::vector<ChartPoint> points;
  for (std::size_t i = 0; i < n; i += i + stride < n || i + 1 == n ? stride : n - 1 - i) {
    double sum = 0, count = 0;
    for (std::size_t j = i - std::min(i, half); j <= std::min(n - 1, i + half); ++j)
      if (const double y = value(steps[j]); std::isfinite(y)) sum += y, count += 1;
    points.push_back({double(steps[i].step), count > 0 ? sum / count : nothing});
  }
  return points;
}

ChartLine line_of(const ReportSeries& series, std::vector<ChartPoint> points) {
  return {series.letter, series.name, series.look, std::move(points)};
}

/// Spans more than fifty-fold: logarithmic.
bool is_wide(const std::vector<ChartLine>& lines) {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const ChartLine& line : lines)
    for (const ChartPoint& p : line.points)
      if (std::isfinite(p.y)) low = std::min(low, p.y), high = std::max(high, p.y);
  return low > 0 && high > 50 * low;
}

std::string data_note(const std::vector<ReportRun>& runs, const std::vector<ReportSeries>& series) {
  std::string out;
  const auto compare = [&](const std::string& what, const std::function<std::string(const ReportRun&)>& of) {
    std::size_t first = runs.size();
    for (std::size_t i = 0; i < runs.size(); ++i) {
      if (!runs[i].trained || runs[i].curve.steps.empty()) continue;
      if (first == runs.size()) first = i;
      if (of(runs[i]) == of(runs[first])) continue;
      out += page_note(fmt::format("Training losses are not of the same texts: {} is {} in {}, {} in {}.", what,
                                   of(runs[first]), series[first].letter, of(runs[i]), series[i].letter));
      return;
    }
  };
  compare("data.train", [](const ReportRun& run) { return run.training_data; });
  for (const char* option : {"data.context", "data.documents"})
    compare(option, [&](const ReportRun& run) { return run.option(option); });
  return out;
}

std::string line_notes(const std::vector<ReportRun>& runs, const std::vector<ReportSeries>& series) {
  std::string out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const TrainingCurve& curve = runs[i].curve;
    if (curve.unreadable > 0)
      out += page_note(fmt::format("{}: {} line(s) of metrics.jsonl could not be read and are left out.",
                                   series[i].letter, curve.unreadable));
    if (curve.without_loss > 0)
      out += page_note(fmt::format("{}: {} step(s) have no finite loss; the curve has gaps there.", series[i].letter,
                                   curve.without_loss));
  }
  return out;
}

}  // namespace

std::string validation_conflict(const std::vector<ReportRun>& runs) {
  const ReportRun* first = nullptr;
  for (const ReportRun& run : runs) {
    if (!std::isfinite(run.curve.last_validation())) continue;
    if (!first) first = &run;
    if (run.validation != first->validation)
      return fmt::format("Validation losses are not of the same data: {} measured on {}, {} on {}.", first->name,
                         first->validation, run.name, run.validation);
  }
  return "";
}

namespace {

struct TrainingCharts {
  std::vector<LineChart> loss;  ///< one, and one for each file whose steps stand apart, told apart by their titles
  LineChart validation{"Validation loss", "step", "nat per token", {}},
      norm{"Gradient norm, before clipping", "step", "norm", {}}, rate{"Learning rate", "step", "", {}};
};

/// Means, and behind them every step.
void add_lines(LineChart& chart, const ReportSeries& series, const std::vector<StepLine>& steps,
               double StepLine::*field) {
  const Value value = [field](const StepLine& s) { return s.*field; };
  ChartLine raw = line_of(series, thinned(steps, value, raw_points));
  raw.faint = true;
  if (steps.size() >= 50) chart.lines.push_back(raw);
  chart.lines.push_back(line_of(series, smoothed(steps, value)));
}

void add_losses(TrainingCharts& charts, const ReportRun& run, const ReportSeries& series) {
  const auto add = [&](const std::string& title, const std::vector<StepLine>& steps) {
    auto at =
        std::find_if(charts.loss.begin(), charts.loss.end(), [&](const LineChart& c) { return c.title == title; });
    if (at == charts.loss.end()) at = charts.loss.insert(at, {title, "step", "nat per token", {}});
    add_lines(*at, series, steps, &StepLine::loss);
  };
  const std::vector<std::int64_t> files = run.curve.files_apart();
  if (files.empty()) add("Training loss", run.curve.steps);
  const std::vector<std::string> names = split_list(run.option("data.train"));
  for (const std::int64_t file : files) {
    const std::string name = file < std::ssize(names) ? names[std::size_t(file)] : fmt::format("file {}", file);
    add("Training loss, " + name.substr(name.find_last_of('/') + 1), run.curve.of_file(file).steps);
  }
}

TrainingCharts training_charts(const std::vector<ReportRun>& runs, const std::vector<ReportSeries>& series) {
  TrainingCharts charts;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto& steps = runs[i].curve.steps;
    if (steps.empty()) continue;
    add_losses(charts, runs[i], series[i]);
    add_lines(charts.norm, series[i], steps, &StepLine::gradient_norm);
    charts.rate.lines.push_back(
        line_of(series[i], thinned(
                               steps, [](const StepLine& s) { return s.learning_rate; }, raw_points)));
    ChartLine measured = line_of(series[i], {});
    for (const StepLine& s : steps)
      if (std::isfinite(s.validation_loss)) measured.points.push_back({double(s.step), s.validation_loss});
    measured.dots = measured.points.size() <= 60;
    if (!measured.points.empty()) charts.validation.lines.push_back(std::move(measured));
  }
  charts.norm.y_log = is_wide(charts.norm.lines);
  charts.rate.from_zero = true;
  return charts;
}

}  // namespace

std::string training_section(const std::vector<ReportRun>& runs, const std::vector<ReportSeries>& series) {
  const TrainingCharts charts = training_charts(runs, series);
  std::string out = "<section id=\"training\"><h2>Training</h2>\n";
  if (charts.loss.empty()) return out + page_note("No run has a metrics.jsonl with steps.") + "</section>\n";
  std::vector<ChartLine> legend;
  for (const ChartLine& line : charts.norm.lines)
    if (!line.faint) legend.push_back(line);
  out += chart_legend(legend) + "<div class=\"charts\">\n";
  for (const LineChart& chart : charts.loss) out += line_chart(chart);
  const std::string conflict = validation_conflict(runs);
  if (!conflict.empty())
    out +=
        "<figure class=\"chart\"><figcaption>Validation loss</figcaption>" + page_note(conflict, true) + "</figure>\n";
  else if (!charts.validation.lines.empty()) out += line_chart(charts.validation);
  out += line_chart(charts.norm) + line_chart(charts.rate) + "</div>\n";
  out += page_note(
      "Strong lines: means over a 25th of the run. Faint lines: every step, or of each stretch of steps the least and "
      "the "
      "greatest value.");
  return out + data_note(runs, series) + line_notes(runs, series) + "</section>\n";
}

namespace {

/// A chart of one figure of the layers; at most nine of them, evenly chosen. Empty if no layer has it.
std::string layer_chart(const std::vector<StepLine>& steps, const std::string& title, const std::string& y_title,
                        double LayerMetrics::*field, std::vector<ChartLine>& legend) {
  std::vector<std::size_t> there;
  std::size_t layers = 0;
  for (const StepLine& line : steps) layers = std::max(layers, line.layers.size());
  const auto value = [field](std::size_t layer) {
    return [layer, field](const StepLine& s) { return layer < s.layers.size() ? s.layers[layer].*field : nothing; };
  };
  for (std::size_t layer = 0; layer < layers; ++layer)
    if (std::any_of(steps.begin(), steps.end(), [&](const StepLine& s) { return std::isfinite(value(layer)(s)); }))
      there.push_back(layer);
  if (there.empty()) return "";
  LineChart chart{title, "step", y_title, {}};
  const std::size_t count = std::min(there.size(), shown_layers);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t layer = there[count > 1 ? i * (there.size() - 1) / (count - 1) : 0];
    chart.lines.push_back(
        {std::to_string(layer), fmt::format("layer {}", layer), int(i), thinned(steps, value(layer), raw_points / 2)});
  }
  if (chart.lines.size() > legend.size()) legend = chart.lines;
  return line_chart(chart);
}

}  // namespace

std::string layer_section(const std::vector<ReportRun>& runs) {
  struct Figure {
    const char *title, *y_title;
    double LayerMetrics::*field;
  };
  constexpr Figure figures[] = {{"CoPE: mean gate", "gate", &LayerMetrics::mean_gate},
                                {"CoPE: horizon", "tokens back", &LayerMetrics::horizon},
                                {"CoPE: share of saturated tiles", "share", &LayerMetrics::saturated},
                                {"TAPE: mean |z|", "|z|", &LayerMetrics::mean_z},
                                {"TAPE: greatest |z|", "|z|", &LayerMetrics::max_z}};
  std::string out;
  for (const ReportRun& run : runs) {
    std::string charts;
    std::vector<ChartLine> legend;
    for (const Figure& figure : figures)
      charts += layer_chart(run.curve.steps, figure.title, figure.y_title, figure.field, legend);
    if (charts.empty()) continue;
    out += fmt::format("<h3>{}</h3>\n{}<div class=\"charts\">\n{}</div>\n", escaped(run.name), chart_legend(legend),
                       charts);
  }
  if (out.empty()) return "";
  return "<section id=\"layers\"><h2>Positions in training</h2>\n" + out +
         page_note(
             "Gate: mean over the gates that were summed. Horizon: mean distance to the farthest tile whose gates were "
             "summed. "
             "Saturated tiles needed none: their position is the table's last. |z|: magnitude of the state that a "
             "layer hands "
             "on; 1 is RoPE's.") +
         "</section>\n";
}

}  // namespace capstan::framework
