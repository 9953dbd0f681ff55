// capstan plan: checks a recipe and says what it will need, without running it.

#include <cstdio>

#include "framework/hf_config.h"
#include "framework/plan.h"
#include "framework/trainer.h"
#include "launch/command.h"
#include "launch/training.h"

namespace capstan::launch {

namespace {

/// The recipe for the model that a Hugging Face config.json describes: no weights and no data are read.
framework::Recipe recipe_of_shape(const Arguments& arguments, const std::string& config) {
  const framework::HfConfig start = framework::read_hf_config(config);
  const framework::ModelShape shape{start.model, start.position};
  framework::Recipe recipe =
      framework::read_training_recipe(arguments.positional("RECIPE"), arguments.recipe_options(), &shape);
  framework::resolve_sizes(recipe.model, recipe.position);
  return recipe;
}

framework::Recipe recipe_with_files(const Arguments& arguments) {
  framework::Recipe recipe =
      framework::read_training_recipe(arguments.positional("RECIPE"), arguments.recipe_options());
  open_files(recipe);
  return recipe;
}

}  // namespace

Command plan_command() {
  Command command;
  command.syntax = {"plan",
                    "Checks a recipe without running it: layout, memory by name, bytes per hop.",
                    {{"RECIPE", "recipe file (recipes/*.cfg)"}},
                    {CommandOption::integer("ranks", 1, 1, 1 << 20, "ranks", "ranks to plan for"),
                     CommandOption::text("config", "", "FILE",
                                         "Hugging Face config.json of the model to start from: plans for its shape, "
                                         "without weights and without data.")},
                    recipe_sections()};
  command.run = [](const Arguments& arguments, parallel::Communicator& world) {
    const std::string config = arguments.text("config");
    const framework::Recipe recipe = config.empty() ? recipe_with_files(arguments) : recipe_of_shape(arguments, config);
    const framework::Plan plan = framework::make_plan(recipe, int(arguments.integer("ranks")));
    if (world.rank() == 0) std::fputs(framework::text_of(plan, recipe).c_str(), stdout);
    return ExitCode::done;
  };
  return command;
}

}  // namespace capstan::launch
