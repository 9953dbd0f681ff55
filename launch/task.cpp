// capstan task: a task's examples as a token file.

#include "framework/tasks/task.h"

#include <algorithm>
#include <cstdio>

#include "framework/files.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

framework::TaskSettings settings_of(const Arguments& arguments) {
  framework::TaskSettings settings;
  settings.tokenizer = arguments.text("tokenizer");
  settings.set = arguments.text("set");
  settings.shortest = arguments.integer("shortest");
  settings.longest = arguments.integer("longest");
  settings.variables = arguments.integer("variables");
  settings.per_cell = arguments.integer("per-cell");
  settings.group = arguments.text("group");
  settings.answers = arguments.text("answers");
  settings.seed = std::uint64_t(arguments.integer("seed"));
  return settings;
}

/// As asked, or all of a set that has an end.
std::int64_t examples_of(const Arguments& arguments, const framework::Task& task, const std::string& set) {
  if (task.examples() == 0) return arguments.integer("examples");
  if (arguments.given("examples"))
    fail(ExitCode::usage, "--examples {}: set {} has {} examples, and they are made all; leave it out",
         arguments.integer("examples"), set, task.examples());
  return task.examples();
}

/// The settings that differ from task to task, as a file names its origin.
std::string text_of(const framework::TaskSettings& settings) {
  std::string text;
  if (settings.variables) text += fmt::format(", variables {}", settings.variables);
  if (settings.per_cell) text += fmt::format(", per cell {}", settings.per_cell);
  if (!settings.group.empty()) text += ", group " + settings.group;
  if (!settings.answers.empty()) text += ", answers " + settings.answers;
  return text;
}

ExitCode run_task(const Arguments& arguments, parallel::Communicator& world) {
  if (world.rank() != 0) return ExitCode::done;  // one rank's work, as in prepare
  const std::string name = arguments.positionals("TASK").front();
  const framework::TaskSettings settings = framework::complete_settings(name, settings_of(arguments));
  const std::int64_t asked = arguments.integer("context"),
                     context = asked ? asked : framework::find_task(name)->context;
  const std::unique_ptr<framework::Task> task = framework::make_task(name, settings);
  const framework::Tokenizer& tokenizer = task->tokenizer();
  const std::int64_t examples = examples_of(arguments, *task, settings.set);

  framework::TokenFileInfo info;
  info.vocabulary = tokenizer.vocabulary();
  info.bos = tokenizer.bos();
  if (task->ends_with_mark()) info.end = tokenizer.end();
  info.tokenizer = tokenizer.name();
  info.tokenizer_hash = tokenizer.hash();
  info.task = name;
  info.set = settings.set;
  info.source = fmt::format("task {}, set {}, {} examples of {} to {}{}, seed {}, context {}", name, settings.set,
                            examples, settings.shortest, settings.longest, text_of(settings), settings.seed, context);
  const std::vector<framework::TokenDocument> documents =
      framework::pack_examples(*task, examples, context, arguments.text("loss") == "all");
  framework::write_token_file(arguments.text("output"), documents, info);

  std::int64_t tokens = 0, answers = 0;
  for (const framework::TokenDocument& document : documents) {
    tokens += std::ssize(document.ids);
    answers += std::count(document.loss_mask.begin(), document.loss_mask.end(), 1);
  }
  std::printf("examples %lld, tokens %lld, of which count %lld, windows %lld of %lld\n", (long long)examples,
              (long long)tokens, (long long)answers, (long long)((tokens - 1) / context), (long long)context);
  const std::vector<std::int32_t>& first = documents.front().ids;
  constexpr std::ptrdiff_t shown = 32;  // tokens
  const std::ptrdiff_t tail = std::min(shown, std::ssize(first));
  std::printf("sample: %s%s\n", tail < std::ssize(first) ? "… " : "",
              framework::printable(tokenizer.decode({first.end() - tail, first.end()})).c_str());
  return ExitCode::done;
}

/// The overview: of each task its sets, lengths and settings.
std::string summaries() {
  std::string text;
  for (const framework::TaskEntry& task : framework::tasks()) {
    text += fmt::format("{}{}: {}; {} to {} {}, context {}", text.empty() ? "" : "\n", task.name, task.summary,
                        task.shortest, task.longest, task.unit, task.context);
    if (task.sets.size() > 1) text += fmt::format("; sets {}", fmt::join(task.sets, ", "));
    for (const std::string& setting : task.settings) text += "; --" + setting;
    text += ".";
  }
  return text;
}

}  // namespace

Command task_command() {
  constexpr std::int64_t most = std::int64_t(1) << 30;
  Command command;
  command.syntax.command = "task";
  command.syntax.summary = "Makes examples of a task as a token file.";
  command.syntax.positionals = {{"TASK", summaries(), true, false}};
  command.syntax.options = {
      CommandOption::text("output", "", "FILE", "Token file to write (.h5).").needed(),
      CommandOption::text("set", "", "NAME", "Which of the task's sets; they share no draws. Empty: train."),
      CommandOption::text("tokenizer", "", "bytes|MODEL",
                          "As in `capstan prepare`. Empty: the task's own word list, or bytes if it has none."),
      CommandOption::integer("examples", 1000, 1, most, "examples", "Examples to make."),
      CommandOption::integer("shortest", 0, 0, most, "LENGTH", "Shortest example, in the task's unit; 0: its own."),
      CommandOption::integer("longest", 0, 0, most, "LENGTH",
                             "Longest example; lengths between are drawn evenly. 0: the task's own."),
      CommandOption::integer("variables", 0, 0, 5, "variables", "counting: 1, 3 or 5; 0: 1."),
      CommandOption::integer("per-cell", 0, 0, most, "examples",
                             "addition --set grid: of each pair of lengths; 0: 100."),
      CommandOption::text("group", "", "NAME", "word_problem: s5, a5 or z60. Empty: s5."),
      CommandOption::text("answers", "", "NAME",
                          "word_problem: last (the product, once) or each (after every element). Empty: last."),
      CommandOption::integer("context", 0, 0, most, "tokens",
                             "No example crosses a multiple of this: train with this data.context, and with "
                             "data.documents = separate. 0: the task's own."),
      CommandOption::choice("loss", "answer", {"answer", "all"},
                            "Tokens that count in training: the answer's, or all of an example's."),
      CommandOption::integer("seed", 1, 0, (std::int64_t(1) << 32) - 1, "", "Seed of the examples."),
  };
  command.run = run_task;
  return command;
}

}  // namespace capstan::launch
