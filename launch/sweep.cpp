// capstan sweep: a recipe for every combination of values and every seed, and one table of what came out.
//
// A run of the sweep is an ordinary run folder, trained and evaluated as `train` and `eval task` do it, with a note of its
// result (result.json). What the sweep has done stands in these notes alone; results.json and results.md are made from them
// after every run.

#include <cstdio>
#include <filesystem>

#include "framework/files.h"
#include "framework/trainer.h"
#include "kernels/build_info.h"
#include "launch/command.h"
#include "launch/evaluation.h"
#include "launch/run_together.h"
#include "launch/sweep_results.h"
#include "launch/training.h"
#include "parallel/agreement.h"

namespace capstan::launch {

namespace {

using parallel::Communicator;

constexpr double patient = 1e9;  ///< seconds: ranks with a share of their own wait for each other however long it takes

/// Runs body on all ranks; if it fails on some, all throw the root cause.
ExitCode all_or_none(Communicator& world, double grace, const std::function<ExitCode()>& body) {
  const JointOutcome outcome = run_jointly(world, body, grace);
  if (outcome.failed()) throw Error(outcome.code, outcome.line);
  return outcome.code;
}

SweepPlan plan_of(const Arguments& arguments) {
  SweepPlan plan;
  plan.recipe = arguments.positional("RECIPE");
  plan.folder = run_folder(arguments, "runs", "runs/sweep-" + std::filesystem::path(plan.recipe).stem().string());
  plan.overrides = training_overrides(arguments);
  plan.axes = sweep_axes(arguments.texts("over"), plan.overrides);
  plan.seeds = arguments.integer("seeds");
  if (arguments.given("eval")) plan.sets = sweep_sets(arguments.text("eval"));
  plan_runs(plan);
  return plan;
}

/// A rank of its own for each run: it must not take more than its share of the machine, nor another's GPU.
void prepare_spread(SweepPlan& plan, Communicator& world) {
  const std::int64_t wanted = plan.runs.front().recipe.grid.threads;
  const int threads = parallel::threads_of_rank(world, wanted);
  for (SweepRun& run : plan.runs) {
    if (run.recipe.train.device == "cuda" && world.size() > 1)
      fail(ExitCode::usage, "--spread gives every run one rank, and all ranks would take the first GPU; leave it out");
    if (run.recipe.grid.threads == 0) run.recipe.grid.threads = threads;
  }
}

/// Before anything is trained; afterwards all ranks know that they have the same plan. World rank 0 looks at the files.
void check(const SweepPlan& plan, Communicator& world, int ranks_of_run) {
  constexpr double grace = 60;
  all_or_none(world, grace, [&] {
    if (world.rank() == 0) check_runs(plan, ranks_of_run);
    return ExitCode::done;
  });
  parallel::Facts facts{{"binary", kernels::build_text()}, {"--runs", plan.folder}};
  for (const SweepRun& run : plan.runs) {
    const std::string recipe = framework::write_recipe(run.recipe);
    facts.emplace_back("recipe of " + run.name, framework::hex(framework::xxh3_of(recipe.data(), recipe.size())));
  }
  for (const SweepSet& set : plan.sets) facts.emplace_back("data file " + set.data, set.checksum);
  parallel::require_agreement(world, facts);
}

/// What one group of ranks does of a sweep.
class Share {
 public:
  /// Every `step`-th run from `first` on; `quiet`: nothing on stdout.
  Share(const SweepPlan& plan, Communicator& group, std::size_t first, std::size_t step, bool quiet)
      : plan_(plan), group_(group), first_(first), step_(step), quiet_(quiet),
        stop_(plan.folder, plan.runs.front().recipe.train.max_time) {}

  /// done, also if runs failed, or stopped. Errors, but for the failures of runs.
  ExitCode work() {
    for (std::size_t i = first_; i < plan_.runs.size(); i += step_) {
      const SweepRun& run = plan_.runs[i];
      const bool finished = is_done(run);
      say(fmt::format("sweep     {} of {}: {}{}", i + 1, plan_.runs.size(), plan_.folder_of(run),
                      finished ? " is done" : ""));
      if (finished) continue;
      if (attempt(run) == ExitCode::stopped) return ExitCode::stopped;
      if (i + step_ < plan_.runs.size() && !stop_.reason(group_).empty()) return ExitCode::stopped;
    }
    return ExitCode::done;
  }

 private:
  bool leads() const { return group_.rank() == 0; }
  void say(const std::string& line) const {
    if (!leads() || quiet_) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  bool is_done(const SweepRun& run) {
    bool done = false;
    if (leads()) {
      const auto noted = noted_result(plan_, run);
      done = noted && is_finished(plan_, run, *noted);
    }
    return group_.all_reduce(std::int64_t(done), parallel::Reduce::max) > 0;
  }

  /// Trains and evaluates a run and notes what came out. A failure that all its ranks share is a result, too, unless
  /// it tells of the command, the recipe or the files.
  ExitCode attempt(const SweepRun& run) {
    std::vector<SetFigure> sets;
    const JointOutcome outcome = run_jointly(group_, [&] {
      const ExitCode code = train(run);
      if (code == ExitCode::done && !plan_.sets.empty()) sets = evaluate(run);
      return code;
    });
    if (outcome.failed() && (outcome.code != ExitCode::internal || !outcome.alike))
      throw Error(outcome.code, fmt::format("{}: {}", run.name, outcome.line));
    if (leads() && outcome.code != ExitCode::stopped) {
      RunResult result = trained_so_far(plan_.folder_of(run));
      result.failure = outcome.line;
      result.sets = sets;
      note_result(plan_, run, result);
    }
    if (leads()) write_sweep(plan_);
    if (outcome.failed()) say(fmt::format("failed    {}: {}", run.name, outcome.line));
    return outcome.code;
  }

  ExitCode train(const SweepRun& run) {
    return framework::Trainer(run.recipe, group_).run(plan_.folder_of(run), {&stop_, quiet_});
  }

  /// As `capstan eval task` with the device, precision and tile of the training.
  std::vector<SetFigure> evaluate(const SweepRun& run) {
    const std::string folder = plan_.folder_of(run);
    std::string files;
    for (const SweepSet& set : plan_.sets) files += (files.empty() ? "" : ",") + set.data;
    const framework::TrainConfig& train = run.recipe.train;
    const Arguments arguments = parse_arguments(
        task_evaluation_command().syntax,
        {"--model=" + folder, "--data=" + files, "--device=" + train.device, "--precision=" + train.precision,
         fmt::format("--tile={}", train.tile), fmt::format("--threads={}", run.recipe.grid.threads)});
    const TaskEvaluation evaluation = evaluate_tasks(arguments, group_);
    if (leads()) framework::write_text_atomically(folder + "/eval/task.json", evaluation.json);
    if (!quiet_) print_on_first(group_, evaluation.table);
    std::vector<SetFigure> figures;
    for (std::size_t i = 0; i < plan_.sets.size(); ++i) {
      const SweepSet& set = plan_.sets[i];
      const framework::TaskCounts& counts = evaluation.results.at(i).counts;
      figures.push_back({set.data, set.task, set.set, set.checksum, counts.examples, counts.right, counts.accuracy()});
    }
    return figures;
  }

  const SweepPlan& plan_;
  Communicator& group_;
  std::size_t first_, step_;
  bool quiet_;
  framework::StopRequest stop_;
};

ExitCode work_off(const SweepPlan& plan, Communicator& world, bool spread) {
  if (!spread) return Share(plan, world, 0, 1, false).work();
  const auto alone = world.split(world.rank(), 0);
  return all_or_none(world, patient, [&] {
    return Share(plan, *alone, std::size_t(world.rank()), std::size_t(world.size()), world.rank() != 0).work();
  });
}

/// The table and how it ended, on all ranks alike.
ExitCode conclude(const SweepPlan& plan, Communicator& world, ExitCode code) {
  std::string failed;
  std::int64_t failures = 0;
  if (world.rank() == 0) {
    write_sweep(plan);
    const auto results = noted_results(plan);
    print_on_first(world, "\n" + sweep_table(plan, results));
    for (std::size_t i = 0; i < results.size(); ++i)
      if (results[i] && !results[i]->failure.empty() && ++failures <= 3)
        failed += (failed.empty() ? "" : ", ") + plan.runs[i].name;
    std::printf("saved to %s/results.json and results.md%s\n", plan.folder.c_str(),
                code == ExitCode::stopped ? "; stopped: the same command goes on" : "");
  }
  failures = world.all_reduce(failures);
  failed = world.broadcast(failed, 0);
  if (code == ExitCode::done && failures > 0)
    fail(ExitCode::internal,
         "{} of {} runs failed ({}{}); {}/results.md says why, and the same command tries them again", failures,
         plan.runs.size(), failed, failures > 3 ? ", …" : "", plan.folder);
  return code;
}

ExitCode run_sweep(const Arguments& arguments, Communicator& world) {
  SweepPlan plan = plan_of(arguments);
  const bool spread = arguments.flag("spread");
  if (spread) prepare_spread(plan, world);
  check(plan, world, spread ? 1 : world.size());
  return conclude(plan, world, work_off(plan, world, spread));
}

}  // namespace

Command sweep_command() {
  Command command;
  command.syntax = {
      "sweep",
      "Trains a recipe with every combination of values and several seeds; one table.",
      {{"RECIPE", "recipe file (recipes/*.cfg)"}},
      {CommandOption::text("over", "", "KEY=V,…",
                           "Values of a recipe's option, like position.kind=rope,cope; again for every further option.")
           .needed()
           .repeatable(),
       CommandOption::integer("seeds", 3, 1, 1000, "seeds",
                              "Runs of each combination: train.seed and data.seed are 1, 2, … in them."),
       CommandOption::text("eval", "", "FILE,…",
                           "Token files of tasks (capstan task): measures exact match on them; without it the "
                           "validation loss."),
       CommandOption::text("runs", "", "DIR",
                           "Folder of the runs and their table; default: runs/sweep- and the recipe's name."),
       CommandOption::flag("spread", false,
                           "Deals the runs out over the ranks, one rank for each, instead of all ranks on every run.")},
      recipe_sections()};
  for (CommandOption& option : training_options()) command.syntax.options.push_back(std::move(option));
  command.run = run_sweep;
  return command;
}

}  // namespace capstan::launch
