// capstan plan: checks a recipe and says what it will need, without running it.

#include <algorithm>
#include <cstdio>

#include "framework/dataset.h"
#include "framework/plan.h"
#include "framework/trainer.h"
#include "launch/command.h"

namespace capstan::launch {

namespace {

/// The vocabulary, from the model or from the data files, which are opened and checked.
void resolve_from_files(framework::Recipe& recipe) {
  const std::vector<std::string> paths = framework::split_list(recipe.data.train);
  if (paths.empty()) fail(ExitCode::config, "data.train is empty: name one or more token files (capstan prepare makes them)");
  const framework::Dataset data(paths, {}, recipe.data.context, recipe.data.documents == "joined", recipe.data.seed);
  if (recipe.model.vocabulary == 0) recipe.model.vocabulary = data.vocabulary();
  if (data.vocabulary() > recipe.model.vocabulary)
    fail(ExitCode::bad_data, "{}: its vocabulary of {} is larger than the model's {}: prepare the text with the model's tokenizer", recipe.data.train,
         data.vocabulary(), recipe.model.vocabulary);
  framework::resolve_sizes(recipe.model, recipe.position);
}

}  // namespace

Command plan_command() {
  Command command;
  command.syntax = {"plan",
                    "Checks a recipe without running it: layout, memory by name, bytes per hop.",
                    {{"RECIPE", "recipe file (recipes/*.cfg)"}},
                    {CommandOption::integer("ranks", 1, 1, 1 << 20, "ranks", "ranks to plan for")},
                    true};
  command.run = [](const Arguments& arguments, parallel::Communicator& world) {
    framework::Recipe recipe = framework::read_training_recipe(arguments.positional("RECIPE"), arguments.recipe_options());
    resolve_from_files(recipe);
    const framework::Plan plan = framework::make_plan(recipe, int(arguments.integer("ranks")));
    if (world.rank() == 0) std::fputs(framework::text_of(plan, recipe).c_str(), stdout);
    return ExitCode::done;
  };
  return command;
}

}  // namespace capstan::launch
