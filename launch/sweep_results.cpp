#include "launch/sweep_results.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "framework/files.h"
#include "framework/json.h"

namespace capstan::launch {

namespace {

using Json = nlohmann::ordered_json;
using Results = std::vector<std::optional<RunResult>>;

std::string json_text(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

/// A number of a JSON object, if it is there and one.
std::optional<double> number_in(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

Json json_of(const SetFigure& set) {
  return {{"data", set.data},         {"task", set.task},   {"set", set.set},          {"checksum", set.checksum},
          {"examples", set.examples}, {"right", set.right}, {"accuracy", set.accuracy}};
}

/// What a run is, and what it came to.
Json json_of(const SweepPlan& plan, const SweepRun& run, const std::optional<RunResult>& result) {
  Json json = {{"name", run.name}};
  for (std::size_t i = 0; i < plan.axes.size(); ++i) json["values"][plan.axes[i].key] = run.values[i];
  json["seed"] = run.seed;
  json["status"] = !result ? "waiting" : result->failure.empty() ? "done" : "failed";
  if (!result) return json;
  if (!result->failure.empty()) json["reason"] = result->failure;
  json["steps"] = result->steps;
  json["tokens"] = result->tokens;
  json["loss"] = json_of(result->loss);
  json["validation_loss"] = json_of(result->validation_loss);
  json["sets"] = Json::array();
  for (const SetFigure& set : result->sets) json["sets"].push_back(json_of(set));
  json["seconds"] = result->seconds;
  return json;
}

RunResult result_of(const Json& json) {
  RunResult result;
  if (json.at("status") == "failed") result.failure = json.at("reason").get<std::string>();
  result.steps = json.at("steps").get<std::int64_t>();
  result.tokens = json.at("tokens").get<std::int64_t>();
  result.loss = number_in(json, "loss");
  result.validation_loss = number_in(json, "validation_loss");
  for (const Json& set : json.at("sets"))
    result.sets.push_back({set.at("data").get<std::string>(), set.at("task").get<std::string>(),
                           set.at("set").get<std::string>(), set.at("checksum").get<std::string>(),
                           set.at("examples").get<std::int64_t>(), set.at("right").get<std::int64_t>(),
                           set.at("accuracy").get<double>()});
  result.seconds = json.at("seconds").get<double>();
  return result;
}

std::string note_of(const SweepPlan& plan, const SweepRun& run) { return plan.folder_of(run) + "/result.json"; }

/// One column of figures: its head, and a run's figure in it.
struct Column {
  std::string name;
  double factor;
  int digits;
  std::size_t set;  ///< of the plan's; unused by the validation loss
  bool of_loss;

  std::optional<double> figure(const std::optional<RunResult>& result) const {
    if (!result || !result->failure.empty()) return std::nullopt;
    return of_loss ? result->validation_loss : std::optional(result->sets.at(set).accuracy);
  }
};

std::vector<Column> columns_of(const SweepPlan& plan) {
  if (plan.sets.empty()) return {{"validation loss", 1, 4, 0, true}};
  std::vector<Column> columns;
  for (std::size_t i = 0; i < plan.sets.size(); ++i) {
    const SweepSet& set = plan.sets[i];
    const auto same = [&](const SweepSet& other) { return other.task == set.task && other.set == set.set; };
    const bool told_apart = !set.task.empty() && std::count_if(plan.sets.begin(), plan.sets.end(), same) == 1;
    columns.push_back({told_apart ? set.task + ", " + set.set : set.data, 100, 2, i, false});
  }
  return columns;
}

/// Over the seeds of the combination whose first run is `first`.
Summary over_seeds(const SweepPlan& plan, const Results& results, std::size_t first, const Column& column) {
  std::vector<double> values;
  for (std::size_t i = first; i < first + std::size_t(plan.seeds); ++i)
    if (const auto figure = column.figure(results[i])) values.push_back(*figure);
  return summary_of(values);
}

/// A cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) result += c == '|' ? std::string("\\|") : std::string(1, c);
  return result;
}

}  // namespace

RunResult trained_so_far(const std::string& run_folder) {
  RunResult result;
  const std::string path = run_folder + "/metrics.jsonl";
  if (!std::filesystem::exists(path)) return result;
  std::stringstream lines(framework::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const Json step = Json::parse(line, nullptr, false);
    if (!step.is_object()) continue;  // a torn last line
    result.steps = step.value("step", std::int64_t(0));
    result.tokens += step.value("tokens", std::int64_t(0));
    result.seconds += number_in(step, "seconds").value_or(0);
    result.loss = number_in(step, "loss");
    result.validation_loss = number_in(step, "validation_loss");
  }
  return result;
}

void note_result(const SweepPlan& plan, const SweepRun& run, const RunResult& result) {
  framework::write_text_atomically(note_of(plan, run), json_text(json_of(plan, run, result)));
}

std::optional<RunResult> noted_result(const SweepPlan& plan, const SweepRun& run) {
  const std::string path = note_of(plan, run);
  if (!std::filesystem::exists(path)) return std::nullopt;
  const std::string text = framework::read_file(path);
  try {
    return result_of(Json::parse(text));
  } catch (const nlohmann::json::exception&) { return std::nullopt; }
}

bool is_finished(const SweepPlan& plan, const SweepRun& run, const RunResult& result) {
  const auto same = [](const SetFigure& figure, const SweepSet& set) {
    return figure.data == set.data && figure.checksum == set.checksum;
  };
  return result.failure.empty() && result.steps == run.recipe.train.steps &&
         std::equal(result.sets.begin(), result.sets.end(), plan.sets.begin(), plan.sets.end(), same);
}

Results noted_results(const SweepPlan& plan) {
  Results results;
  for (const SweepRun& run : plan.runs) {
    std::optional<RunResult> result = noted_result(plan, run);
    if (result && result->failure.empty() && !is_finished(plan, run, *result)) result.reset();
    results.push_back(std::move(result));
  }
  return results;
}

Summary summary_of(const std::vector<double>& values) {
  Summary summary{std::int64_t(values.size()), 0, {}};
  if (values.empty()) return summary;
  const double n = double(values.size());
  for (const double value : values) summary.mean += value / n;
  if (values.size() < 2) return summary;
  double squares = 0;
  for (const double value : values) squares += (value - summary.mean) * (value - summary.mean);
  summary.sd = std::sqrt(squares / (n - 1));
  return summary;
}

std::string text_of(const Summary& summary, double factor, int digits) {
  if (summary.n == 0) return "-";
  const std::string spread = summary.sd ? fmt::format(" ± {:.{}f}", *summary.sd * factor, digits) : "";
  return fmt::format("{:.{}f}{} ({})", summary.mean * factor, digits, spread, summary.n);
}

std::string sweep_json(const SweepPlan& plan, const Results& results) {
  Json json = {{"kind", "sweep"}, {"recipe", plan.recipe}};
  json["over"] = Json::object();
  for (const SweepAxis& axis : plan.axes) json["over"][axis.key] = axis.values;
  json["seeds"] = plan.seeds;
  json["options"] = Json::object();
  for (const auto& [key, value] : plan.overrides) json["options"][key] = value;
  json["sd"] = "of the sample, n - 1";
  json["runs"] = Json::array();
  for (std::size_t i = 0; i < plan.runs.size(); ++i) json["runs"].push_back(json_of(plan, plan.runs[i], results[i]));
  json["combinations"] = Json::array();
  for (std::size_t first = 0; first < plan.runs.size(); first += std::size_t(plan.seeds)) {
    Json row;
    for (std::size_t i = 0; i < plan.axes.size(); ++i) row["values"][plan.axes[i].key] = plan.runs[first].values[i];
    row["figures"] = Json::array();
    for (const Column& column : columns_of(plan)) {
      const Summary summary = over_seeds(plan, results, first, column);
      row["figures"].push_back({{"figure", column.of_loss ? "validation_loss" : "accuracy"},
                                {"of", column.of_loss ? "" : plan.sets[column.set].data},
                                {"n", summary.n},
                                {"mean", summary.n ? Json(summary.mean) : Json(nullptr)},
                                {"sd", json_of(summary.sd)}});
    }
    json["combinations"].push_back(row);
  }
  return json_text(json);
}

std::string sweep_table(const SweepPlan& plan, const Results& results) {
  const std::vector<Column> columns = columns_of(plan);
  const auto done = std::count_if(results.begin(), results.end(),
                                  [](const auto& result) { return result && result->failure.empty(); });
  std::string text = fmt::format(
      "Sweep of {}: {}, mean ± standard deviation over the seeds (their number). {} of {} runs are done.\n\n",
      plan.recipe, plan.sets.empty() ? "loss on data.validation, nat per token" : "accuracy in %, exact match", done,
      plan.runs.size());
  std::string head = "|", rule = "|";
  for (const SweepAxis& axis : plan.axes) {
    head += " " + cell(axis.key) + " |";
    rule += "---|";
  }
  for (const Column& column : columns) {
    head += " " + cell(column.name) + " |";
    rule += "---|";
  }
  text += head + "\n" + rule + "\n";
  for (std::size_t first = 0; first < plan.runs.size(); first += std::size_t(plan.seeds)) {
    text += "|";
    for (const std::string& value : plan.runs[first].values) text += " " + cell(value) + " |";
    for (const Column& column : columns)
      text += " " + text_of(over_seeds(plan, results, first, column), column.factor, column.digits) + " |";
    text += "\n";
  }
  bool any = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i] || results[i]->failure.empty()) continue;
    text += fmt::format("{}- failed: {}: {}\n", any ? "" : "\n", plan.runs[i].name, results[i]->failure);
    any = true;
  }
  return text;
}

void write_sweep(const SweepPlan& plan) {
  const Results results = noted_results(plan);
  framework::write_text_atomically(plan.folder + "/results.json", sweep_json(plan, results));
  framework::write_text_atomically(plan.folder + "/results.md", sweep_table(plan, results));
}

}  // namespace capstan::launch
