// capstan plan: checks a recipe and says what it will need, without running it.

#include <cstdio>

#include "framework/plan.h"
#include "framework/trainer.h"
#include "framework/training_data.h"
#include "launch/command.h"

namespace capstan::launch {

namespace {

/// All files that training would read, with its checks; what the recipe leaves to them is filled in.
void resolve_from_files(framework::Recipe& recipe) {
  const framework::TrainingData data = framework::open_training_data(recipe);
  framework::resolve_sizes(recipe.model, recipe.position);
  std::optional<framework::Checkpoint> start;
  if (!recipe.model.from.empty())
    start.emplace(framework::Checkpoint::open(framework::resolve_model_folder(recipe.model.from)));
  framework::text_conventions(recipe, data, start ? &*start : nullptr);
}

}  // namespace

Command plan_command() {
  Command command;
  command.syntax = {"plan",
                    "Checks a recipe without running it: layout, memory by name, bytes per hop.",
                    {{"RECIPE", "recipe file (recipes/*.cfg)"}},
                    {CommandOption::integer("ranks", 1, 1, 1 << 20, "ranks", "ranks to plan for")},
                    recipe_sections()};
  command.run = [](const Arguments& arguments, parallel::Communicator& world) {
    framework::Recipe recipe =
        framework::read_training_recipe(arguments.positional("RECIPE"), arguments.recipe_options());
    resolve_from_files(recipe);
    const framework::Plan plan = framework::make_plan(recipe, int(arguments.integer("ranks")));
    if (world.rank() == 0) std::fputs(framework::text_of(plan, recipe).c_str(), stdout);
    return ExitCode::done;
  };
  return command;
}

}  // namespace capstan::launch
