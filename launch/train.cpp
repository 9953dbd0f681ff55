// capstan train: a recipe, a run folder, and the training loop (framework/trainer).

#include <filesystem>
#include <optional>

#include "framework/trainer.h"
#include "launch/command.h"
#include "launch/training.h"

namespace capstan::launch {

std::vector<CommandOption> training_options() {
  return {CommandOption::real("max-time", 0, 0, 1e9, "seconds",
                              "stop with a saved checkpoint after this time (train.max_time); 0: no limit"),
          CommandOption::choice("device", "cpu", {"cpu", "cuda", "ref"}, "where it computes (train.device)"),
          memory_report_option()};
}

std::vector<std::pair<std::string, std::string>> training_overrides(const Arguments& arguments) {
  auto overrides = arguments.recipe_options();
  if (arguments.given("device")) overrides.emplace_back("train.device", arguments.text("device"));
  if (arguments.given("max-time"))
    overrides.emplace_back("train.max_time", fmt::format("{}", arguments.real("max-time")));
  return overrides;
}

framework::TrainingData open_files(framework::Recipe& recipe) {
  framework::TrainingData data = framework::open_training_data(recipe);
  framework::resolve_sizes(recipe.model, recipe.position);
  std::optional<framework::Checkpoint> start;
  if (!recipe.model.from.empty())
    start.emplace(framework::Checkpoint::open(framework::resolve_model_folder(recipe.model.from)));
  framework::text_conventions(recipe, data, start ? &*start : nullptr);
  return data;
}

std::string run_folder(const Arguments& arguments, const std::string& option, const std::string& otherwise) {
  if (!arguments.given(option)) return otherwise;
  if (arguments.text(option).empty())
    fail(ExitCode::usage, "--{} is empty; name a folder, or leave --{} out", option, option);
  return arguments.text(option);
}

Command train_command() {
  Command command;
  command.syntax = {"train",
                    "Trains by a recipe; the same command again resumes.",
                    {{"RECIPE", "recipe file (recipes/*.cfg)"}},
                    {CommandOption::text("run", "", "DIR", "run folder; default: runs/ and the recipe's name")},
                    recipe_sections()};
  for (CommandOption& option : training_options()) command.syntax.options.push_back(std::move(option));
  command.run = [](const Arguments& arguments, parallel::Communicator& world) {
    const std::string path = arguments.positional("RECIPE");
    const framework::Recipe recipe = framework::read_training_recipe(path, training_overrides(arguments));
    const std::string run = run_folder(arguments, "run", "runs/" + std::filesystem::path(path).stem().string());
    return framework::Trainer(recipe, world).run(run);
  };
  return command;
}

}  // namespace capstan::launch
