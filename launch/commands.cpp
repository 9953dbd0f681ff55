#include <algorithm>
#include <cstdio>

#include "framework/memory_report.h"
#include "kernels/build_info.h"
#include "launch/command.h"

namespace capstan::launch {
namespace {

constexpr char memory_report_name[] = "memory-report";

std::vector<std::string> words_of(const std::string& name) {
  const std::size_t space = name.find(' ');
  return space == std::string::npos ? std::vector{name} : std::vector{name.substr(0, space), name.substr(space + 1)};
}

bool begins_with(const std::vector<std::string>& words, const std::vector<std::string>& first) {
  return words.size() >= first.size() && std::equal(first.begin(), first.end(), words.begin());
}

/// "eval" is the group of "eval perplexity".
bool is_group(const std::vector<Command>& all, const std::string& word) {
  return std::any_of(all.begin(), all.end(),
                     [&](const Command& c) { return c.syntax.command.compare(0, word.size() + 1, word + " ") == 0; });
}

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

void print(const parallel::Communicator& world, const std::string& text) {
  if (world.rank() == 0) std::fputs(text.c_str(), stdout);
}

Command help_options_command() {
  Command command;
  command.syntax = {"help-options", "Prints docs/options.md: all options of recipes.", {}, {}};
  command.run = [](const Arguments&, parallel::Communicator& world) {
    print(world, options_reference());
    return ExitCode::done;
  };
  command.hidden = true;
  return command;
}

Command help_encodings_command() {
  Command command;
  command.syntax = {"help-encodings", "Prints docs/encodings.md: every encoding under every schedule.", {}, {}};
  command.run = [](const Arguments&, parallel::Communicator& world) {
    print(world, encodings_reference());
    return ExitCode::done;
  };
  command.hidden = true;
  return command;
}

}  // namespace

std::vector<Command> commands() {
  return {
      prepare_command(),      task_command(),           train_command(),  sweep_command(),           plan_command(),
      perplexity_command(),   passkey_command(),        needle_command(), task_evaluation_command(), generate_command(),
      logits_command(),       import_command(),         export_command(), inspect_command(),         report_command(),
      help_options_command(), help_encodings_command(),
  };
}

std::string program_help(const std::vector<Command>& all, const std::string& group) {
  const std::string prefix = group.empty() ? "" : group + " ";
  std::string result = fmt::format("capstan {}SUBCOMMAND …\n", prefix);
  if (group.empty()) result += "Trains and evaluates language models whose context is spread over MPI ranks.\n";
  result += "\nSubcommands\n";
  for (const Command& command : all)
    if (!command.hidden && command.syntax.command.compare(0, prefix.size(), prefix) == 0)
      result += fmt::format("  {:<18}{}\n", command.syntax.command, command.syntax.summary);
  result += fmt::format("\ncapstan {}SUBCOMMAND --help tells more; every subcommand also runs under mpirun.\n", prefix);
  return result;
}

const Command& find_command(const std::vector<Command>& all, const std::vector<std::string>& words) {
  for (const Command& command : all)
    if (begins_with(words, words_of(command.syntax.command))) return command;
  if (words.empty()) fail(ExitCode::usage, "capstan needs a subcommand; capstan --help lists them");

  const std::string& first = words.front();
  const bool group = is_group(all, first);
  if (group && words.size() == 1)
    fail(ExitCode::usage, "capstan {} needs to know what; capstan {} --help lists the choices", first, first);
  std::vector<std::string> known;
  for (const Command& command : all) {
    const auto name = words_of(command.syntax.command);
    if (!command.hidden && (!group || name.front() == first)) known.push_back(group ? name.back() : name.front());
  }
  const std::string scope = group ? "capstan " + first : "capstan", given = group ? words[1] : first;
  const std::string near = framework::nearest_name(given, known);
  fail(ExitCode::usage, "unknown subcommand {} of {}; {}", given, scope,
       near.empty() ? scope + " --help lists them" : fmt::format("did you mean {} {}?", scope, near));
}

CommandOption memory_report_option() {
  return CommandOption::flag(memory_report_name, false, "Print, when done, what memory was taken and for what.");
}

ExitCode run_program(const std::vector<Command>& all, const std::vector<std::string>& words,
                     parallel::Communicator& world) {
  if (words.size() == 1 && words[0] == "--version") {
    print(world, kernels::build_text() + "\n");
    return ExitCode::done;
  }
  const bool whole = words.size() == 1 && asks_for_help(words[0]);
  if (whole || (words.size() == 2 && asks_for_help(words[1]) && is_group(all, words[0]))) {
    print(world, program_help(all, whole ? "" : words[0]));
    return ExitCode::done;
  }
  const Command& command = find_command(all, words);
  const auto own = words.begin() + std::ptrdiff_t(words_of(command.syntax.command).size());
  const Arguments arguments = parse_arguments(command.syntax, {own, words.end()});
  if (arguments.help()) {
    print(world, help_text(command.syntax));
    return ExitCode::done;
  }
  const ExitCode code = command.run(arguments, world);
  const auto& options = command.syntax.options;
  const bool may_report = std::any_of(options.begin(), options.end(),
                                      [](const CommandOption& option) { return option.name == memory_report_name; });
  if (may_report && arguments.flag(memory_report_name)) print(world, framework::memory_report_text(world));
  return code;
}

}  // namespace capstan::launch
