// What evaluate_task found, as JSON and as a table.

#include <algorithm>
#include <map>

#include "framework/json.h"
#include "framework/report/chart.h"  // wilson_interval
#include "framework/task_evaluation.h"

namespace capstan::framework {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const TaskResult& result) {
  const TaskCounts& counts = result.counts;
  const Interval interval = wilson_interval(counts.right, counts.examples);
  Json json;
  json["task"] = result.task;
  json["set"] = result.set;
  json["examples"] = counts.examples;
  json["right"] = counts.right;
  json["accuracy"] = counts.accuracy();
  json["accuracy_95"] = {interval.low, interval.high};
  json["scored_tokens"] = counts.tokens;
  json["right_tokens"] = counts.right_tokens;
  json["token_accuracy"] = counts.token_accuracy();
  json["mean_nll"] = counts.mean_nll();
  json["complete"] = result.complete;
  json["data"] = result.data;
  json["source"] = result.source;
  if (result.cells.empty()) return json;
  json["cell_names"] = result.cell_names;
  json["cells"] = Json::array();
  for (const TaskCell& cell : result.cells) {
    Json one;
    for (std::size_t i = 0; i < result.cell_names.size(); ++i) one[result.cell_names[i]] = cell.at[i];
    one["examples"] = cell.examples;
    one["right"] = cell.right;
    one["accuracy"] = double(cell.right) / double(cell.examples);
    json["cells"].push_back(one);
  }
  return json;
}

/// Values of one axis in at most ten groups of one width, from the least value on.
struct Axis {
  std::int64_t least, width;
  std::int64_t group(std::int64_t value) const { return (value - least) / width; }
  std::string name(std::int64_t group) const {
    const std::int64_t first = least + group * width;
    return width == 1 ? std::to_string(first) : fmt::format("{}-{}", first, first + width - 1);
  }
};

Axis axis_of(const std::vector<TaskCell>& cells, std::size_t which) {
  constexpr std::int64_t most = 10;
  std::int64_t least = cells.front().at[which], greatest = least;
  for (const TaskCell& cell : cells) {
    least = std::min(least, cell.at[which]);
    greatest = std::max(greatest, cell.at[which]);
  }
  return {least, (greatest - least + most) / most};
}

/// Accuracy in percent by groups of cells: the first value down, the second, if there is one, across.
std::string cell_table(const TaskResult& result) {
  const bool flat = result.cell_names.size() == 1;
  const Axis down = axis_of(result.cells, 0), across = flat ? Axis{0, 1} : axis_of(result.cells, 1);
  std::map<std::int64_t, std::map<std::int64_t, TaskCell>> rows;
  std::map<std::int64_t, int> columns;
  for (const TaskCell& cell : result.cells) {
    const std::int64_t column = across.group(flat ? 0 : cell.at[1]);
    TaskCell& sum = rows[down.group(cell.at[0])][column];
    sum.examples += cell.examples;
    sum.right += cell.right;
    columns[column];
  }
  std::string text = fmt::format("  accuracy in % by {}", result.cell_names[0]);
  if (!flat) {
    text += fmt::format(" (down) and {} (across)\n  {:>9}", result.cell_names[1], "");
    for (const auto& [column, unused] : columns) text += fmt::format("  {:>7}", across.name(column));
  }
  for (auto& [row, cells] : rows) {
    text += fmt::format("\n  {:>9}", down.name(row));
    for (const auto& [column, unused] : columns) {
      const TaskCell& cell = cells[column];
      text += cell.examples ? fmt::format("  {:>7.1f}", 100 * double(cell.right) / double(cell.examples))
                            : fmt::format("  {:>7}", "-");
    }
  }
  return text + "\n";
}

}  // namespace

std::string task_json(const std::vector<TaskResult>& results, const std::string& model,
                      const parallel::ProcessGrid& grid) {
  Json json;
  json["kind"] = "task";
  json["scoring"] = "an example is right if the greedy token is the target at every scored position, teacher-forced";
  json["accuracy_95"] = "Wilson";
  json["model"] = model;
  json["sets"] = Json::array();
  for (const TaskResult& result : results) json["sets"].push_back(json_of(result));
  json["ranks"] = {{"data", grid.data_size}, {"ring", grid.ring_size}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string task_table(const std::vector<TaskResult>& results, const std::string& model) {
  std::string text =
      fmt::format("  model  {}\n  right: the greedy token is the target at every scored position\n\n", model);
  text += fmt::format("  {:<24}  {:>8}  {:>8}  {:>8}  {:<16}  {:>8}  {:>8}\n", "task, set", "examples", "right", "%",
                      "95 % (Wilson)", "token %", "NLL");
  for (const TaskResult& result : results) {
    const TaskCounts& counts = result.counts;
    const Interval interval = wilson_interval(counts.right, counts.examples);
    const std::string name = result.task.empty() ? result.data : result.task + ", " + result.set;
    text += fmt::format(
        "  {:<24}  {:>8}  {:>8}  {:>8.2f}  {:<16}  {:>8.2f}  {:>8.4f}{}\n", name, counts.examples, counts.right,
        100 * counts.accuracy(), fmt::format("{:.2f} to {:.2f}", 100 * interval.low, 100 * interval.high),
        100 * counts.token_accuracy(), counts.mean_nll(), result.complete ? "" : "  (only the first, --max-examples)");
  }
  for (const TaskResult& result : results)
    if (!result.cells.empty()) text += "\n  " + result.data + "\n" + cell_table(result);
  return text;
}

}  // namespace capstan::framework
