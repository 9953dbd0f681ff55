// capstan eval task.

#include "launch/command.h"
#include "launch/evaluation.h"

namespace capstan::launch {

namespace {

std::vector<framework::TokenFile> open_data(const Arguments& arguments, parallel::Communicator& world) {
  std::vector<framework::TokenFile> files;
  for (const std::string& path : framework::split_list(arguments.text("data")))
    files.push_back(open_same_data(world, path));
  if (files.empty()) fail(ExitCode::usage, "--data is empty: name one or more token files (capstan task makes them)");
  return files;
}

}  // namespace

TaskEvaluation evaluate_tasks(const Arguments& arguments, parallel::Communicator& all_ranks) {
  check_result_path("json", arguments.text("json"));
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  const auto grid = evaluation_grid(arguments, world);
  const std::vector<framework::TokenFile> files = open_data(arguments, world);
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  std::vector<framework::TaskResult> results;
  for (const framework::TokenFile& file : files) {
    check_same_tokenizer(file, loaded);
    results.push_back(
        framework::evaluate_task(*loaded.model, grid, file, arguments.integer("max-examples"), loaded.tile));
  }
  const std::string table = task_table(results, loaded.name), json = task_json(results, loaded.name, grid);
  return {std::move(results), table, json};
}

namespace {

ExitCode run_task_evaluation(const Arguments& arguments, parallel::Communicator& world) {
  const TaskEvaluation evaluation = evaluate_tasks(arguments, world);
  print_on_first(world, evaluation.table);
  write_result(world, arguments.text("json"), evaluation.json);
  return ExitCode::done;
}

}  // namespace

Command task_evaluation_command() {
  Command command;
  command.syntax = model_syntax(
      "eval task", "Measures how often a model answers a task's examples right; greedy, exact match.", 1,
      {CommandOption::text("data", "", "FILE,…", "Token files with a loss mask (capstan task); each is a set.")
           .needed(),
       CommandOption::integer("max-examples", 0, 0, std::int64_t(1) << 40, "examples",
                              "Only the first of each file; 0: all."),
       CommandOption::text("json", "", "FILE", "Also writes the result there.")});
  command.run = run_task_evaluation;
  return command;
}

}  // namespace capstan::launch
