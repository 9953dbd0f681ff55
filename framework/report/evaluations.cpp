// Sections of the evaluations: perplexity against length and by position, retrieval maps.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include "framework/report/sections.h"
#include "kernels/check.h"

namespace capstan::framework {

namespace {

/// What two perplexities must share to stand in one chart.
struct Comparable {
  std::string data, convention, documents, bos;
  auto operator<=>(const Comparable&) const = default;
};

struct Group {
  std::vector<std::pair<const ReportSeries*, const PerplexityEvaluation*>> members;
};

std::map<Comparable, Group> groups_of(const std::vector<ReportSeries>& series) {
  std::map<Comparable, Group> groups;
  for (const ReportSeries& s : series)
    for (const PerplexityEvaluation* e : s.perplexity)
      groups[{e->data, e->convention, e->documents, e->bos}].members.emplace_back(&s, e);
  for (auto& [key, group] : groups)
    std::stable_sort(group.members.begin(), group.members.end(),
                     [](const auto& a, const auto& b) { return a.second->window < b.second->window; });
  return groups;
}

/// Two evaluations of one window that were not made alike: one sentence with both values; empty if all were.
std::string conflict_of(const Group& group) {
  std::map<std::int64_t, std::pair<const ReportSeries*, const PerplexityEvaluation*>> first;
  for (const auto& [series, e] : group.members) {
    const auto [at, is_new] = first.emplace(e->window, std::pair(series, e));
    const PerplexityEvaluation& other = *at->second.second;
    if (e->stride != other.stride || e->counted_tokens != other.counted_tokens)
      return fmt::format(
          "Not drawn: at window {}, {} counts {} tokens with stride {}, and {} counts {} with stride {}; evaluate both "
          "alike.",
          number_text(double(e->window)), at->second.first->letter, number_text(double(other.counted_tokens)),
          number_text(double(other.stride)), series->letter, number_text(double(e->counted_tokens)),
          number_text(double(e->stride)));
  }
  return "";
}

std::vector<ChartLine> lines_by(const Group& group) {
  std::vector<ChartLine> lines;
  for (const auto& [series, e] : group.members) {
    const auto at =
        std::find_if(lines.begin(), lines.end(), [&](const ChartLine& l) { return l.letter == series->letter; });
    if (at == lines.end()) lines.push_back({series->letter, series->name, series->look, {}, false, true});
  }
  std::sort(lines.begin(), lines.end(), [](const ChartLine& a, const ChartLine& b) {
    return std::tuple(a.letter.size(), a.letter) < std::tuple(b.letter.size(), b.letter);
  });
  return lines;
}

ChartLine& line_with(std::vector<ChartLine>& lines, const std::string& letter) {
  return *std::find_if(lines.begin(), lines.end(), [&](const ChartLine& l) { return l.letter == letter; });
}

std::string length_chart(const Group& group) {
  LineChart chart{"Perplexity against length", "window, tokens", "perplexity", lines_by(group), true};
  std::set<double> windows;
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const auto& [series, e] : group.members) {
    line_with(chart.lines, series->letter).points.push_back({double(e->window), e->perplexity});
    windows.insert(double(e->window));
    low = std::min(low, e->perplexity);
    high = std::max(high, e->perplexity);
  }
  chart.y_log = low > 0 && high > 20 * low;
  chart.x_ticks.assign(windows.begin(), windows.end());
  return line_chart(chart);
}

std::string position_chart(const Group& group) {
  const std::int64_t longest = group.members.back().second->window;
  LineChart chart{fmt::format("Loss by position, window {}", number_text(double(longest))), "position in the window",
                  "nat per token", lines_by(group)};
  for (const auto& [series, e] : group.members)
    for (const auto& bucket : e->buckets)
      if (e->window == longest && bucket.counted > 0)
        line_with(chart.lines, series->letter)
            .points.push_back({0.5 * double(bucket.begin + bucket.end), bucket.mean_nll});
  return line_chart(chart);
}

std::string perplexity_table_of(const Group& group) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [s, e] : group.members)
    rows.push_back(
        {fmt::format("{}  {}", s->letter, s->name), number_text(double(e->window)), number_text(double(e->stride)),
         number_text(double(e->windows)) + (e->complete          ? ""
                                            : e->document_tokens ? " (of each document's start)"
                                                                 : " (first)"),
         number_text(double(e->counted_tokens)), number_text(e->mean_nll, 5), number_text(e->perplexity, 5)});
  return html_table({"model", "window", "stride", "windows", "counted tokens", "nat per token", "perplexity"}, rows);
}

}  // namespace

std::string perplexity_section(const std::vector<ReportSeries>& series) {
  const std::map<Comparable, Group> groups = groups_of(series);
  if (groups.empty()) return "";
  std::string out = "<section id=\"perplexity\"><h2>Perplexity</h2>\n";
  if (groups.size() > 1)
    out += page_note(fmt::format("{} sets of conventions, a chart each: figures of one do not compare with another's.",
                                 groups.size()));
  for (const auto& [key, group] : groups) {
    out += fmt::format("<h3>{}</h3>\n", escaped(fmt::format("{}: convention {}, documents {}, BOS {}", key.data,
                                                            key.convention, key.documents, key.bos)));
    const std::string conflict = conflict_of(group);
    const bool is_cut = std::any_of(group.members.begin(), group.members.end(),
                                    [](const auto& m) { return !m.second->complete && !m.second->document_tokens; });
    if (!conflict.empty()) out += page_note(conflict, true);
    else
      out += chart_legend(lines_by(group)) + "<div class=\"charts\">\n" + length_chart(group) + position_chart(group) +
             "</div>\n";
    out += perplexity_table_of(group);
    if (is_cut)
      out += page_note(
          "(first): only the first windows were read; lengths of other token counts are not of the same text.");
  }
  return out + "</section>\n";
}

// ---- retrieval ------------------------------------------------------------------------------------------------------

std::string percent_text(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string interval_text(std::int64_t k, std::int64_t n) {
  if (n == 0) return "–";
  const Interval i = wilson_interval(k, n);
  return fmt::format("{:.1f} to {:.1f} %", 100 * i.low, 100 * i.high);
}

namespace {

std::string depth_text(double depth) { return depth < 0 ? "drawn" : percent_text(depth); }

/// What two maps must share for their cells to compare.
std::string how_made(const RetrievalEvaluation& e) {
  const std::string hash = e.haystack_hash.empty() ? "" : fmt::format(" ({})", e.haystack_hash);
  const std::string needles =
      e.haystack.empty() ? "" : fmt::format(", haystack {}{}, needles {}", e.haystack, hash, e.keys);
  return fmt::format("{}{}, BOS {}", e.prompts, needles, e.bos);
}

std::string retrieval_map(const ReportSeries& series, const RetrievalEvaluation& e) {
  std::set<std::int64_t> lengths;
  std::set<double> depths;
  for (const auto& cell : e.cells) lengths.insert(cell.length), depths.insert(cell.depth);
  HeatMap map;
  map.title = fmt::format("{}  {}", series.letter, series.name);
  map.row_title = "depth";
  map.column_title = "prompt length, tokens";
  map.note = how_made(e);
  for (const double depth : depths) map.rows.push_back(depth_text(depth));
  for (const std::int64_t length : lengths) map.columns.push_back(number_text(double(length)));
  map.cell_width = 58;
  map.cell_height = 26;
  const std::size_t cells = map.rows.size() * map.columns.size();
  map.values.assign(cells, std::numeric_limits<double>::quiet_NaN());
  map.texts.resize(cells);
  map.hover.resize(cells);
  for (const auto& cell : e.cells) {
    if (cell.trials == 0) continue;
    const auto row = std::size_t(std::distance(depths.begin(), depths.find(cell.depth)));
    const auto column = std::size_t(std::distance(lengths.begin(), lengths.find(cell.length)));
    const std::size_t at = row * map.columns.size() + column;
    map.values[at] = double(cell.correct) / double(cell.trials);
    map.texts[at] = fmt::format("{}/{}", cell.correct, cell.trials);
    map.hover[at] = fmt::format("{} tokens, depth {}: {} of {}, 95 % interval {}", cell.length, depth_text(cell.depth),
                                cell.correct, cell.trials, interval_text(cell.correct, cell.trials));
  }
  return heat_map(map);
}

/// One evaluation, and the series that it is of.
using Placed = std::pair<const ReportSeries*, const RetrievalEvaluation*>;

std::vector<Placed> of_task(const std::vector<ReportSeries>& series, const std::string& task) {
  std::vector<Placed> found;
  for (const ReportSeries& s : series)
    for (const RetrievalEvaluation* e : s.retrieval)
      if (e->task == task) found.emplace_back(&s, e);
  return found;
}

std::string retrieval_conflict(const std::vector<Placed>& members) {
  const auto how = [](const RetrievalEvaluation& e) {
    return fmt::format("{}, tokenizer {}", how_made(e), e.tokenizer);
  };
  const auto& [first, one] = members.front();
  for (const auto& [s, e] : members)
    if (how(*e) != how(*one))
      return fmt::format("The prompts are not the same, so maps do not compare cell by cell: {} has {}; {} has {}.",
                         first->letter, how(*one), s->letter, how(*e));
  return "";
}

std::string retrieval_section(const RetrievalTaskName& name, const std::vector<Placed>& members) {
  std::string maps;
  std::vector<std::vector<std::string>> rows;
  for (const auto& [s, e] : members) {
    maps += retrieval_map(*s, *e);
    for (const auto& cell : e->cells)
      rows.push_back({fmt::format("{}  {}", s->letter, s->name), number_text(double(cell.length)),
                      depth_text(cell.depth), fmt::format("{}/{}", cell.correct, cell.trials),
                      interval_text(cell.correct, cell.trials)});
  }
  const std::string conflict = retrieval_conflict(members);
  return fmt::format("<section id=\"{}\"><h2>{}</h2>\n", name.task, name.title) +
         page_note(
             "Right answers of all trials, for prompts of a length with the key at a depth (0 %: at the start).") +
         (conflict.empty() ? "" : page_note(conflict, true)) + heat_scale("share right", 0, 1) +
         "<div class=\"maps\">\n" + maps + "</div>\n<h3>95 % intervals (Wilson) of every cell</h3>\n" +
         html_table({"model", "length", "depth", "right", "95 % interval"}, rows) + "</section>\n";
}

}  // namespace

std::string retrieval_sections(const std::vector<ReportSeries>& series) {
  std::string out;
  for (const RetrievalTaskName& name : retrieval_tasks()) {
    const std::vector<Placed> members = of_task(series, name.task);
    if (!members.empty()) out += retrieval_section(name, members);
  }
  return out;
}

}  // namespace capstan::framework
