// capstan task: a task's examples as a token file.

#include "framework/tasks/task.h"

#include <algorithm>
#include <cstdio>

#include "framework/files.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

ExitCode run_task(const Arguments& arguments, parallel::Communicator& world) {
  if (world.rank() != 0) return ExitCode::done;  // one rank's work, as in prepare
  const std::string name = arguments.positionals("TASK").front();
  framework::TaskSettings settings;
  settings.tokenizer = arguments.text("tokenizer");
  settings.shortest = arguments.integer("shortest");
  settings.longest = arguments.integer("longest");
  settings.seed = std::uint64_t(arguments.integer("seed"));
  const std::int64_t context = arguments.integer("context"), examples = arguments.integer("examples");
  const std::unique_ptr<framework::Task> task = framework::make_task(name, settings);
  const framework::Tokenizer& tokenizer = task->tokenizer();

  framework::TokenFileInfo info;
  info.vocabulary = tokenizer.vocabulary();
  info.bos = tokenizer.bos();
  info.tokenizer = tokenizer.name();
  info.tokenizer_hash = tokenizer.hash();
  info.source = fmt::format("task {}, {} examples of {} to {}, seed {}, context {}", name, examples, settings.shortest,
                            settings.longest, settings.seed, context);
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
  const std::string tail = tokenizer.decode({first.end() - std::min(shown, std::ssize(first)), first.end()});
  std::printf("sample: … %s\n", framework::printable(tail).c_str());
  return ExitCode::done;
}

std::string summaries() {
  std::string text;
  for (const framework::TaskEntry& entry : framework::tasks())
    text += (text.empty() ? "" : "; ") + entry.name + ": " + entry.summary;
  return text + ".";
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
      CommandOption::text("tokenizer", "bytes", "bytes|MODEL", "As in `capstan prepare`."),
      CommandOption::integer("examples", 1000, 1, most, "examples", "Examples to make."),
      CommandOption::integer("shortest", 128, 1, most, "LENGTH", "Shortest example."),
      CommandOption::integer("longest", 512, 1, most, "LENGTH", "Longest example; lengths between are drawn evenly."),
      CommandOption::integer("context", 512, 1, most, "tokens",
                             "No example crosses a multiple of this: train with this data.context, and with "
                             "data.documents = separate."),
      CommandOption::choice("loss", "answer", {"answer", "all"},
                            "Tokens that count in training: the answer's, or all of an example's."),
      CommandOption::integer("seed", 1, 0, (std::int64_t(1) << 32) - 1, "", "Seed of the examples."),
  };
  command.run = run_task;
  return command;
}

}  // namespace capstan::launch
