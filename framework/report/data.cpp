#include "framework/report/data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "framework/checkpoint_folders.h"
#include "framework/checkpoint_manifest.h"
#include "framework/files.h"
#include "framework/json.h"
#include "framework/token_file.h"

namespace capstan::framework {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t evaluation_limit = std::int64_t(1) << 28;

double number(const Json& json, const char* key) {
  const auto at = json.find(key);
  return at != json.end() && at->is_number() ? at->get<double>() : nothing;
}

/// Samples are named "file:number".
std::int64_t only_file(const Json& json) {
  const auto samples = json.find("samples");
  if (samples == json.end() || !samples->is_array() || samples->empty()) return -1;
  std::set<std::string> files;
  for (const Json& sample : *samples) {
    const std::string name = sample.is_string() ? sample.get<std::string>() : "";
    files.insert(name.substr(0, name.find(':')));
  }
  std::int64_t file = -1;
  const std::string& first = *files.begin();
  const auto [end, problem] = std::from_chars(first.data(), first.data() + first.size(), file);
  const bool is_number = problem == std::errc() && end == first.data() + first.size() && file >= 0;
  return files.size() == 1 && is_number ? file : -1;
}

StepLine step_line(const Json& json) {
  StepLine line{std::int64_t(number(json, "step")),
                number(json, "loss"),
                number(json, "gradient_norm"),
                number(json, "learning_rate"),
                number(json, "validation_loss"),
                number(json, "tokens"),
                {},
                only_file(json)};
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array()) return line;
  for (const Json& layer : *layers)
    if (layer.is_object())
      line.layers.push_back({number(layer, "mean_gate"), number(layer, "horizon"), number(layer, "saturated"),
                             number(layer, "mean_z"), number(layer, "max_z")});
  return line;
}

double last_of(const std::vector<StepLine>& steps, double StepLine::*field) {
  const auto at =
      std::find_if(steps.rbegin(), steps.rend(), [&](const StepLine& line) { return std::isfinite(line.*field); });
  return at == steps.rend() ? nothing : (*at).*field;
}

}  // namespace

TrainingCurve parse_metrics(const std::string& text) {
  TrainingCurve curve;
  std::map<std::int64_t, StepLine> by_step;
  std::stringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Json json = Json::parse(line, nullptr, false);
    const double step = json.is_object() ? number(json, "step") : nothing;
    if (!std::isfinite(step) || step < 0 || step >= 1e15) {
      ++curve.unreadable;
      continue;
    }
    by_step[std::int64_t(step)] = step_line(json);
  }
  for (auto& [step, line] : by_step) {
    curve.without_loss += !std::isfinite(line.loss);
    curve.steps.push_back(std::move(line));
  }
  return curve;
}

double TrainingCurve::tokens() const {
  double sum = 0;
  for (const StepLine& line : steps) sum += std::isfinite(line.tokens) ? line.tokens : 0;
  return sum;
}

std::vector<std::int64_t> TrainingCurve::files_apart() const {
  std::set<std::int64_t> files;
  for (const StepLine& line : steps) files.insert(line.file);
  if (files.size() < 2 || files.count(-1)) return {};
  return {files.begin(), files.end()};
}

TrainingCurve TrainingCurve::of_file(std::int64_t file) const {
  TrainingCurve own;
  for (const StepLine& line : steps)
    if (line.file == file) own.steps.push_back(line);
  return own;
}

double TrainingCurve::last_loss() const {
  const std::vector<std::int64_t> files = files_apart();
  return last_of(files.empty() ? steps : of_file(files.front()).steps, &StepLine::loss);
}
double TrainingCurve::last_validation() const { return last_of(steps, &StepLine::validation_loss); }

std::string ReportRun::option(const std::string& wanted) const {
  for (const auto& [key, value] : options)
    if (key == wanted) return value;
  return "";
}

// ---- evaluations ----------------------------------------------------------------------------------------------------

const std::vector<RetrievalTaskName>& retrieval_tasks() {
  static const std::vector<RetrievalTaskName> tasks = {{"passkey", "Passkey retrieval"},
                                                       {"ruler-single", "One needle (RULER)"},
                                                       {"ruler-multikey", "One needle of many (RULER)"}};
  return tasks;
}

namespace {

std::string text_of(const Json& json) { return json.is_string() ? json.get<std::string>() : json.dump(); }

EvaluationSource source_of(const Json& json, const std::string& file) {
  const std::string model = text_of(json.at("model"));
  const std::size_t with = model.find(" with ");
  return {file, model, with == std::string::npos ? "" : model.substr(with + 6)};
}

PerplexityEvaluation perplexity_of(const Json& json, const std::string& file) {
  PerplexityEvaluation e;
  e.source = source_of(json, file);
  e.window = json.at("window");
  e.stride = json.at("stride");
  e.windows = json.at("windows");
  e.counted_tokens = json.at("counted_tokens");
  e.document_tokens = json.value("document_tokens", std::int64_t(0));
  e.mean_nll = json.at("mean_nll");
  e.perplexity = json.at("perplexity");
  e.data = json.at("data");
  e.convention = json.at("convention");
  e.documents = json.at("documents");
  e.bos = json.at("bos");
  e.complete = json.at("complete");
  for (const Json& b : json.at("buckets"))
    e.buckets.push_back({b.at("begin"), b.at("end"), b.at("counted"), b.at("mean_nll")});
  if (e.window < 1) fail(ExitCode::bad_data, "{}: a window of {} tokens; allowed is 1 or more", file, e.window);
  return e;
}

/// Files of before there were other tasks name none.
std::string task_of(const Json& json) { return json.contains("task") ? text_of(json.at("task")) : "passkey"; }

bool is_known_task(const std::string& task) {
  const auto& known = retrieval_tasks();
  return std::any_of(known.begin(), known.end(), [&](const RetrievalTaskName& name) { return name.task == task; });
}

RetrievalEvaluation retrieval_of(const Json& json, const std::string& file) {
  RetrievalEvaluation e;
  e.source = source_of(json, file);
  e.task = task_of(json);
  if (e.task != "passkey") {
    e.haystack = text_of(json.at("haystack"));
    e.haystack_hash = json.at("haystack_hash").is_null() ? "" : text_of(json.at("haystack_hash"));
    e.keys = json.at("keys");
  }
  e.prompts = json.at("preset").is_null() ? "seed " + text_of(json.at("seed")) : "preset " + text_of(json.at("preset"));
  e.bos = text_of(json.at("bos"));
  e.tokenizer = text_of(json.at("tokenizer"));
  for (const Json& c : json.at("cells")) {
    const double depth = c.at("depth").is_null() ? -1 : c.at("depth").get<double>();
    e.cells.push_back({c.at("length"), depth, c.at("correct"), c.at("trials")});
    const auto& cell = e.cells.back();
    if (cell.correct < 0 || cell.trials < 0 || cell.correct > cell.trials)
      fail(ExitCode::bad_data, "{}: {} correct of {} trials; make the evaluation again", file, cell.correct,
           cell.trials);
  }
  return e;
}

TaskSetEvaluation task_set_of(const Json& json, const EvaluationSource& source) {
  TaskSetEvaluation e;
  e.source = source;
  e.task = text_of(json.at("task"));
  e.set = text_of(json.at("set"));
  e.data = text_of(json.at("data"));
  e.examples = json.at("examples");
  e.right = json.at("right");
  e.tokens = json.at("scored_tokens");
  e.right_tokens = json.at("right_tokens");
  e.complete = json.at("complete");
  if (json.contains("cells"))
    for (const Json& c : json.at("cells")) {
      TaskSetEvaluation::Cell cell{{}, c.at("examples"), c.at("right")};
      e.cell_names = json.at("cell_names");
      for (const std::string& name : e.cell_names) cell.at.push_back(c.at(name));
      e.cells.push_back(cell);
    }
  if (e.right < 0 || e.examples < 1 || e.right > e.examples)
    fail(ExitCode::bad_data, "{}: {} right of {} examples; make the evaluation again", source.file, e.right,
         e.examples);
  return e;
}

}  // namespace

bool add_evaluation(ReportRun& run, const std::string& file, const std::string& text) {
  check_json(text, file);
  const Json json = Json::parse(text);
  if (!json.is_object()) return false;
  try {
    if (json.contains("window") && json.contains("mean_nll")) run.perplexity.push_back(perplexity_of(json, file));
    else if (json.contains("cells") && json.contains("preset") && is_known_task(task_of(json)))
      run.retrieval.push_back(retrieval_of(json, file));
    else if (json.contains("kind") && json.at("kind") == "task")
      for (const Json& set : json.at("sets")) run.tasks.push_back(task_set_of(set, source_of(json, file)));
    else return false;
  } catch (const Json::exception& problem) {
    fail(ExitCode::bad_data, "{}: not an evaluation as capstan eval writes it ({}); make it again", file,
         printable(problem.what()));
  }
  return true;
}

// ---- run folders ----------------------------------------------------------------------------------------------------

namespace {

bool is_there(const std::string& path) {
  std::error_code problem;
  return fs::exists(path, problem);
}

std::string newest_folder(const std::string& folder) {
  if (is_there(folder + "/" + manifest_name)) return folder;
  const std::string parent = folder + "/checkpoints";
  if (!is_there(parent)) return "";
  for (const auto& [step, name] : step_folders(parent))
    if (is_there(parent + "/" + name + "/" + manifest_name)) return parent + "/" + name;
  return "";
}

void take_options(ReportRun& run, Recipe recipe, bool all) {
  for (const Option& option : options(recipe)) {
    const bool of_model = option.name.starts_with("model.") || option.name.starts_with("position.");
    if (all || of_model) run.options.emplace_back(option.name, option.text());
  }
  run.position = recipe.position.kind;
  if (recipe.position.scaling != "none")
    run.position += fmt::format(", {} × {:g}", recipe.position.scaling, recipe.position.factor);
}

/// Checksum of a token file that can still be read, else its path alone: runs are moved, and their data deleted.
std::string data_text(const std::string& path) {
  try {
    return fmt::format("{} (checksum {})", path, TokenFile::open(path).info().checksum);
  } catch (const Error&) { return path; }
}

/// A tokenizer that is not built in goes by its file's hash, whatever the name: so do token files that were made with it.
std::string tokenizer_of(const Manifest& manifest) {
  const std::string& name = manifest.header.tokenizer;
  if (name.empty() || is_builtin_tokenizer(name)) return name;
  for (const ManifestFile& file : manifest.files)
    if (is_tokenizer_file(file.name)) return file.xxh3;
  return "";
}

std::string tokenizer_of_data(const std::string& files) {
  const std::vector<std::string> paths = split_list(files);
  if (paths.empty()) return "";
  try {
    const TokenFile file = TokenFile::open(paths.front());
    const TokenFileInfo& info = file.info();
    return is_builtin_tokenizer(info.tokenizer) ? info.tokenizer : info.tokenizer_hash;
  } catch (const Error&) { return ""; }
}

void read_config(ReportRun& run) {
  const std::string path = run.folder + "/config.cfg";
  Manifest manifest;
  if (!run.checkpoint.empty()) {
    const std::string file = run.checkpoint + "/" + manifest_name;
    manifest = parse_manifest(read_file(file), file);
    run.tokenizer = tokenizer_of(manifest);
  }
  Recipe recipe;
  run.trained = is_there(path);
  if (run.trained) {
    read_recipe(recipe, path);
    run.planned_steps = recipe.train.steps;
    if (run.tokenizer.empty()) run.tokenizer = tokenizer_of_data(recipe.data.train);
    if (!recipe.data.validation.empty()) run.validation = data_text(recipe.data.validation);
    for (const std::string& data : split_list(recipe.data.train))
      run.training_data += (run.training_data.empty() ? "" : ", ") + data_text(data);
  }
  if (!run.checkpoint.empty()) {  // resolved sizes, and what the model brought along
    const std::string from = recipe.model.from;
    const PositionConfig own = recipe.position;
    recipe.model = manifest.header.model;
    recipe.model.from = from;
    recipe.position = manifest.header.position;
    if (run.trained) recipe.position.length = own.length;
  }
  if (run.trained || !run.checkpoint.empty()) take_options(run, recipe, run.trained);
}

void read_evaluations(ReportRun& run) {
  const std::string folder = run.folder + "/eval";
  if (!is_there(folder)) return;
  std::vector<std::string> files;
  std::error_code problem;
  for (fs::recursive_directory_iterator at(folder, problem), end; !problem && at != end; at.increment(problem))
    if (at->is_regular_file() && at->path().extension() == ".json") files.push_back(at->path().string());
  if (problem) fail(ExitCode::io, "{}: {}", folder, problem.message());
  std::sort(files.begin(), files.end());
  for (const std::string& file : files)
    if (!add_evaluation(run, file, read_file(file, evaluation_limit))) run.not_shown.push_back(file);
}

std::string last_part(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  const std::string name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  return name.empty() || name == "." || name == ".." ? folder : name;
}

}  // namespace

ReportRun read_run(const std::string& folder) {
  std::error_code problem;
  if (!fs::is_directory(folder, problem))
    fail(ExitCode::io, "{}: no such run folder{}", folder, problem ? ": " + problem.message() : "");
  ReportRun run;
  run.folder = folder;
  while (run.folder.size() > 1 && run.folder.back() == '/') run.folder.pop_back();
  run.name = last_part(folder);
  run.checkpoint = newest_folder(run.folder);
  const std::string metrics = run.folder + "/metrics.jsonl";
  if (run.checkpoint.empty() && !is_there(metrics) && !is_there(run.folder + "/config.cfg") &&
      !is_there(run.folder + "/eval"))
    fail(ExitCode::bad_data,
         "{}: holds nothing of a run (config.cfg, metrics.jsonl, checkpoints, eval, manifest.json); name a run's or a "
         "model's folder",
         folder);
  read_config(run);
  if (is_there(metrics)) run.curve = parse_metrics(read_file(metrics));
  read_evaluations(run);
  return run;
}

std::vector<ReportRun> read_runs(const std::vector<std::string>& folders) {
  std::vector<ReportRun> runs;
  for (const std::string& folder : folders) {
    ReportRun run = read_run(folder);
    for (const ReportRun& other : runs) {
      std::error_code problem;
      if (fs::equivalent(run.folder, other.folder, problem))
        fail(ExitCode::usage, "{} and {} are one run; name each run once", other.folder, run.folder);
      if (!run.tokenizer.empty() && !other.tokenizer.empty() && run.tokenizer != other.tokenizer)
        fail(ExitCode::bad_data,
             "{} has tokenizer {}, {} has tokenizer {}: losses of different tokens do not compare; report on them "
             "separately",
             other.folder, other.tokenizer, run.folder, run.tokenizer);
    }
    runs.push_back(std::move(run));
  }
  for (ReportRun& run : runs) {
    const bool is_alone = std::count_if(runs.begin(), runs.end(), [&](const ReportRun& other) {
                            return last_part(other.folder) == last_part(run.folder);
                          }) == 1;
    if (!is_alone) run.name = run.folder;
  }
  return runs;
}

}  // namespace capstan::framework
