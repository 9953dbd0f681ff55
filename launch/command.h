#pragma once
// The program's face: a table of subcommands. A new one is a file with a function that returns its Command, declared
// here, and one line in commands.cpp.

#include <functional>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "launch/options.h"
#include "parallel/communicator.h"

namespace capstan::launch {

struct Command {
  Syntax syntax;
  /// Called by all ranks with the same arguments. Returns done or stopped; everything else is an Error. A rank that has
  /// nothing to do returns at once: the program waits for all (run_together.h). Only rank 0 writes to stdout.
  std::function<ExitCode(const Arguments& arguments, parallel::Communicator& world)> run;
  bool hidden = false;  ///< not in the list of `capstan --help`
};

Command prepare_command();
Command task_command();
Command train_command();
Command sweep_command();
Command plan_command();
Command perplexity_command();
Command passkey_command();
Command needle_command();
Command task_evaluation_command();
Command generate_command();
Command logits_command();
Command import_command();
Command export_command();
Command inspect_command();
Command report_command();

/// --memory-report, for commands that compute: run_program prints the report when they are done.
CommandOption memory_report_option();

/// The table, in the order of --help.
std::vector<Command> commands();

/// The command whose name `words` begin with ("eval perplexity" has two); errors: usage, with the nearest name.
const Command& find_command(const std::vector<Command>& all, const std::vector<std::string>& words);

/// `capstan --help`, or of a group: "eval" lists "eval perplexity" and "eval passkey".
std::string program_help(const std::vector<Command>& all, const std::string& group = "");

/// Runs the program with the words after its name. Errors: those of parse_arguments and of the command.
ExitCode run_program(const std::vector<Command>& all, const std::vector<std::string>& words,
                     parallel::Communicator& world);

}  // namespace capstan::launch
