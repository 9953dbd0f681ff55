// capstan prepare: text to token file.

#include "framework/prepare.h"

#include <cstdio>

#include "launch/command.h"

namespace capstan::launch {
namespace {

ExitCode run_prepare(const Arguments& arguments, parallel::Communicator& world) {
  if (world.rank() != 0) return ExitCode::done;  // one rank's work; the others wait for it at the program's end
  framework::PrepareOptions options;
  options.inputs = arguments.positionals("INPUT");
  options.tokenizer = arguments.text("tokenizer");
  options.output = arguments.text("output");
  options.text_key = arguments.text("text-key");
  options.split = arguments.text("split");
  options.bos = arguments.flag("bos");
  options.end = arguments.flag("end");
  const framework::PrepareReport report = framework::prepare(options);
  for (const std::string& line : report.lines()) std::printf("%s\n", line.c_str());
  return ExitCode::done;
}

}  // namespace

Command prepare_command() {
  Command command;
  command.syntax.command = "prepare";
  command.syntax.summary = "Turns text into a token file.";
  command.syntax.positionals = {{"INPUT", ".txt and .jsonl files; folders give all of theirs", true, true}};
  command.syntax.options = {
      CommandOption::text("output", "", "FILE", "Token file to write (.h5).").needed(),
      CommandOption::text(
          "tokenizer", "bytes", "bytes|MODEL",
          "bytes, a SentencePiece .model file, a tokenizer.json (byte-level BPE), or a folder with one of these."),
      CommandOption::text("text-key", "text", "KEY", "Key of the text in a .jsonl line."),
      CommandOption::text("split", "", "LINE",
                          "Line that stands between the documents of a .txt file. Empty: a file is one document."),
      CommandOption::flag("bos", true, "Begin each document with BOS."),
      CommandOption::flag("end", false, "End each document with the end token."),
  };
  command.run = run_prepare;
  return command;
}

}  // namespace capstan::launch
