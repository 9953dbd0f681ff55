// capstan train: a recipe, a run folder, and the training loop (framework/trainer).

#include <filesystem>

#include "framework/trainer.h"
#include "launch/command.h"

namespace capstan::launch {

Command train_command() {
  Command command;
  command.syntax = {"train",
                    "Trains by a recipe; the same command again resumes.",
                    {{"RECIPE", "recipe file (recipes/*.cfg)"}},
                    {CommandOption::text("run", "", "DIR", "run folder; default: runs/ and the recipe's name"),
                     CommandOption::real("max-time", 0, 0, 1e9, "seconds",
                                         "stop with a saved checkpoint after this time (train.max_time); 0: no limit"),
                     CommandOption::choice("device", "cpu", {"cpu", "cuda", "ref"}, "where it computes (train.device)"),
                     memory_report_option()},
                    recipe_sections()};
  command.run = [](const Arguments& arguments, parallel::Communicator& world) {
    const std::string path = arguments.positional("RECIPE");
    auto overrides = arguments.recipe_options();
    if (arguments.given("device")) overrides.emplace_back("train.device", arguments.text("device"));
    framework::Recipe recipe = framework::read_training_recipe(path, overrides);
    if (arguments.given("max-time")) recipe.train.max_time = arguments.real("max-time");
    if (arguments.given("run") && arguments.text("run").empty())
      fail(ExitCode::usage, "--run is empty; name a folder, or leave --run out");
    const std::string run =
        arguments.given("run") ? arguments.text("run") : "runs/" + std::filesystem::path(path).stem().string();
    return framework::Trainer(recipe, world).run(run);
  };
  return command;
}

}  // namespace capstan::launch
