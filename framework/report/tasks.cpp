// Section of the tasks (capstan eval task): exact match of every set, and maps of sets whose examples come in cells.

#include <algorithm>
#include <limits>
#include <set>

#include "framework/report/sections.h"
#include "kernels/check.h"

namespace capstan::framework {

namespace {

/// One set's evaluation, and the series that it is of.
using Placed = std::pair<const ReportSeries*, const TaskSetEvaluation*>;

std::string set_name(const TaskSetEvaluation& e) {
  return e.task.empty() ? e.data : fmt::format("{}, {}", e.task, e.set);
}

std::string model_name(const ReportSeries& series) { return fmt::format("{}  {}", series.letter, series.name); }

std::vector<Placed> all_sets(const std::vector<ReportSeries>& series) {
  std::vector<Placed> placed;
  for (const ReportSeries& s : series)
    for (const TaskSetEvaluation* e : s.tasks) placed.emplace_back(&s, e);
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return set_name(*a.second) < set_name(*b.second); });
  return placed;
}

std::string set_table(const std::vector<Placed>& placed) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [s, e] : placed)
    rows.push_back(
        {set_name(*e), model_name(*s), fmt::format("{}/{}", e->right, e->examples),
         fmt::format("{:.2f} %", 100 * double(e->right) / double(e->examples)), interval_text(e->right, e->examples),
         fmt::format("{:.2f} %", 100 * double(e->right_tokens) / double(std::max<std::int64_t>(1, e->tokens)))});
  return html_table({"set", "model", "right", "share", "95 % interval", "scored tokens right"}, rows);
}

/// Accuracy over both values of the cells: for addition the digits of the two operands.
std::string cell_map(const ReportSeries& series, const TaskSetEvaluation& e) {
  std::set<std::int64_t> down, across;
  for (const auto& cell : e.cells) down.insert(cell.at[0]), across.insert(cell.at[1]);
  HeatMap map;
  map.title = fmt::format("{}: {}", model_name(series), set_name(e));
  map.row_title = e.cell_names[0];
  map.column_title = e.cell_names[1];
  for (const std::int64_t value : down) map.rows.push_back(std::to_string(value));
  for (const std::int64_t value : across) map.columns.push_back(std::to_string(value));
  const std::size_t cells = map.rows.size() * map.columns.size();
  const bool has_texts = map.columns.size() <= 12;  // more would not be legible
  map.cell_width = has_texts ? 40 : 16;
  map.cell_height = has_texts ? 24 : 16;
  map.values.assign(cells, std::numeric_limits<double>::quiet_NaN());
  if (has_texts) map.texts.resize(cells);
  map.hover.resize(cells);
  for (const auto& cell : e.cells) {
    if (cell.examples == 0) continue;
    const auto row = std::size_t(std::distance(down.begin(), down.find(cell.at[0])));
    const auto column = std::size_t(std::distance(across.begin(), across.find(cell.at[1])));
    const std::size_t at = row * map.columns.size() + column;
    map.values[at] = double(cell.right) / double(cell.examples);
    if (has_texts) map.texts[at] = fmt::format("{:.0f}", 100 * map.values[at]);
    map.hover[at] =
        fmt::format("{} {}, {} {}: {} of {}, 95 % interval {}", e.cell_names[0], cell.at[0], e.cell_names[1],
                    cell.at[1], cell.right, cell.examples, interval_text(cell.right, cell.examples));
  }
  return heat_map(map);
}

std::string one_value_table(const ReportSeries& series, const TaskSetEvaluation& e) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& cell : e.cells)
    rows.push_back({std::to_string(cell.at[0]), fmt::format("{}/{}", cell.right, cell.examples),
                    interval_text(cell.right, cell.examples)});
  return fmt::format("<h3>{}</h3>\n", escaped(fmt::format("{}: {}", model_name(series), set_name(e)))) +
         html_table({e.cell_names[0], "right", "95 % interval"}, rows);
}

}  // namespace

std::string task_section(const std::vector<ReportSeries>& series) {
  const std::vector<Placed> placed = all_sets(series);
  if (placed.empty()) return "";
  std::string maps, tables;
  for (const auto& [s, e] : placed) {
    if (e->cell_names.size() == 2) maps += cell_map(*s, *e);
    if (e->cell_names.size() == 1) tables += one_value_table(*s, *e);
  }
  std::string out = "<section id=\"tasks\"><h2>Tasks</h2>\n";
  out +=
      page_note("An example is right if the greedy token is the target at every scored position. Intervals: Wilson.");
  out += set_table(placed);
  if (!maps.empty())
    out += heat_scale("share of examples right (numbers in %)", 0, 1) + "<div class=\"maps\">\n" + maps + "</div>\n";
  return out + tables + "</section>\n";
}

}  // namespace capstan::framework
