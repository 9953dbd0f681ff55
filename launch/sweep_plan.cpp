#include "launch/sweep_plan.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "framework/checkpoint_folders.h"
#include "framework/files.h"
#include "framework/plan.h"
#include "framework/trainer.h"
#include "launch/training.h"

namespace capstan::launch {

namespace fs = std::filesystem;
using framework::Option;
using framework::Recipe;
using Overrides = std::vector<std::pair<std::string, std::string>>;

namespace {

const Option& option_of(const std::vector<Option>& all, const std::string& key) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Option& option) { return option.name == key; });
  if (found != all.end()) return *found;
  std::vector<std::string> names;
  for (const Option& option : all) names.push_back(option.name);
  const std::string near = framework::nearest_name(key, names);
  fail(ExitCode::usage, "--over: unknown key {}; {}", framework::printable(key),
       near.empty() ? "keys are written section.key, and capstan sweep --help lists them"
                    : fmt::format("did you mean {}?", near));
}

SweepAxis axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  const auto given =
      equals == std::string::npos ? std::vector<std::string>() : framework::split_list(text.substr(equals + 1));
  if (equals == std::string::npos || equals == 0 || given.empty() || std::count(given.begin(), given.end(), "") > 0)
    fail(ExitCode::usage, "--over {} is not KEY=V,…; write it like --over position.kind=rope,cope",
         framework::printable(text));
  SweepAxis axis{text.substr(0, equals), {}};
  Recipe scratch;
  const std::vector<Option> all = framework::options(scratch);
  const Option& option = option_of(all, axis.key);
  for (const std::string& value : given) {
    option.set(value, "--over");
    const std::string written = option.text();
    if (std::count(axis.values.begin(), axis.values.end(), written) > 0)
      fail(ExitCode::usage, "--over {} has the value {} twice; keep one of the two", axis.key, written);
    axis.values.push_back(written);
  }
  return axis;
}

bool sets_seed(const std::string& key) { return key == "train.seed" || key == "data.seed"; }

/// All combinations of the axes' values; the last axis changes fastest.
std::vector<std::vector<std::string>> combinations(const std::vector<SweepAxis>& axes) {
  std::vector<std::vector<std::string>> all = {{}};
  for (const SweepAxis& axis : axes) {
    std::vector<std::vector<std::string>> longer;
    for (const auto& one : all)
      for (const std::string& value : axis.values) {
        longer.push_back(one);
        longer.back().push_back(value);
      }
    all = std::move(longer);
  }
  return all;
}

std::string name_of(const std::vector<std::string>& values) {
  std::string name;
  for (const std::string& value : values) name += (name.empty() ? "" : "-") + safe_name(value);
  return name;
}

/// Runs body; its errors begin with the name of what it was about.
template <class Body> auto named(const std::string& name, Body&& body) {
  try {
    return body();
  } catch (const Error& error) { throw Error(error.code(), fmt::format("{}: {}", name, error.what())); }
}

Recipe recipe_of(const SweepPlan& plan, const std::vector<std::string>& values) {
  Overrides overrides = plan.overrides;
  for (std::size_t i = 0; i < values.size(); ++i) overrides.emplace_back(plan.axes[i].key, values[i]);
  return framework::read_training_recipe(plan.recipe, overrides);
}

/// Ids of another tokenizer stand for other words: see check_same_tokenizer.
void check_tokenizers(const SweepPlan& plan, const framework::TrainingData& data) {
  const framework::TokenFile& trained = data.train.files().front();
  for (const SweepSet& set : plan.sets)
    if (set.tokenizer_hash != trained.info().tokenizer_hash)
      fail(ExitCode::bad_data, "{}: made with tokenizer {} ({}), the training file {} with {} ({}); make both with one",
           set.data, set.tokenizer, set.tokenizer_hash, trained.path(), trained.info().tokenizer,
           trained.info().tokenizer_hash);
}

/// What was trained in the run's folder must be a part of what will be.
void check_folder(const SweepPlan& plan, const SweepRun& run, Recipe resolved) {
  const std::string folder = plan.folder_of(run);
  if (!fs::exists(folder + "/config.cfg") || !fs::is_directory(folder + "/checkpoints")) return;
  const auto steps = framework::step_folders(folder + "/checkpoints");
  if (steps.empty()) return;
  resolved.train.seed = resolved.data.seed = run.seed;
  framework::refuse_changed_recipe(resolved, folder);
  if (steps.front().first > run.recipe.train.steps)
    fail(ExitCode::config, "{} has been trained for {} steps, train.steps = {}; use another --runs", folder,
         steps.front().first, run.recipe.train.steps);
}

}  // namespace

std::string safe_name(const std::string& value) {
  constexpr std::size_t longest = 48;
  std::string name;
  for (const char c : value.substr(0, longest)) {
    const bool safe =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string("+-_.").find(c) != std::string::npos;
    name += safe ? c : '_';
  }
  if (name == value && !name.empty() && name.front() != '.') return name;
  return "_" + name + "-" + framework::hex(framework::xxh3_of(value.data(), value.size())).substr(0, 8);
}

std::vector<SweepAxis> sweep_axes(const std::vector<std::string>& texts, const Overrides& overrides) {
  const auto is_set = [&](const std::string& key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const auto& one) { return one.first == key; });
  };
  for (const auto& [key, value] : overrides)
    if (sets_seed(key)) fail(ExitCode::usage, "--{} is what --seeds sets; leave it out", key);
  std::vector<SweepAxis> axes;
  for (const std::string& text : texts) {
    SweepAxis axis = axis_of(text);
    if (sets_seed(axis.key)) fail(ExitCode::usage, "--over {} is what --seeds sets; give --seeds N", axis.key);
    if (is_set(axis.key))
      fail(ExitCode::usage, "{} is given by --over and by an option of its own; keep one of the two", axis.key);
    for (const SweepAxis& other : axes)
      if (other.key == axis.key)
        fail(ExitCode::usage, "--over {} is given twice; join the values with commas", axis.key);
    axes.push_back(std::move(axis));
  }
  return axes;
}

std::vector<SweepSet> sweep_sets(const std::string& files) {
  std::vector<SweepSet> sets;
  for (const std::string& path : framework::split_list(files)) {
    const framework::TokenFile file = framework::TokenFile::open(path);
    const framework::TokenFileInfo& info = file.info();
    if (!info.loss_mask)
      fail(ExitCode::bad_data,
           "--eval {}: has no loss mask, so that nothing in it is an answer; capstan task makes such files", path);
    for (const SweepSet& other : sets)
      if (other.data == path) fail(ExitCode::usage, "--eval names {} twice; keep one of the two", path);
    sets.push_back({path, info.task, info.set, info.checksum, info.tokenizer, info.tokenizer_hash});
  }
  if (sets.empty()) fail(ExitCode::usage, "--eval is empty; name token files that capstan task made, or leave it out");
  return sets;
}

void plan_runs(SweepPlan& plan) {
  std::set<std::string> names;
  for (const auto& values : combinations(plan.axes)) {
    const std::string name = name_of(values);
    if (!names.insert(name).second)
      fail(ExitCode::config, "two combinations would have the folder {}/{}-s1; sweep over them one after the other",
           plan.folder, name);
    const Recipe recipe = named(name, [&] { return recipe_of(plan, values); });
    for (std::int64_t seed = 1; seed <= plan.seeds; ++seed) {
      SweepRun run{fmt::format("{}-s{}", name, seed), values, seed, recipe};
      run.recipe.train.seed = run.recipe.data.seed = seed;
      plan.runs.push_back(std::move(run));
    }
  }
}

void check_runs(const SweepPlan& plan, int ranks) {
  for (std::size_t first = 0; first < plan.runs.size(); first += std::size_t(plan.seeds)) {
    const SweepRun& run = plan.runs[first];
    named(name_of(run.values), [&] {
      if (run.recipe.train.steps == 0) fail(ExitCode::config, "train.steps = 0 trains nothing; give 1 or more");
      Recipe resolved = run.recipe;
      const framework::TrainingData data = open_files(resolved);
      if (plan.sets.empty() && !data.validation)
        fail(ExitCode::config, "{} names no data.validation: give --eval FILE,…, or that", plan.recipe);
      check_tokenizers(plan, data);
      if (framework::make_plan(resolved, ranks).trainable == 0)
        fail(ExitCode::config, "train.trainable = {} and train.frozen = {} leave nothing to train",
             resolved.train.trainable, resolved.train.frozen);
      for (std::int64_t seed = 0; seed < plan.seeds; ++seed)
        check_folder(plan, plan.runs[first + std::size_t(seed)], resolved);
    });
  }
}

}  // namespace capstan::launch
