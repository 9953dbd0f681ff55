// capstan report: runs as one page.

#include "framework/report/page.h"

#include <algorithm>
#include <filesystem>

#include "framework/checkpoint.h"
#include "framework/files.h"
#include "kernels/build_info.h"
#include "kernels/threads.h"
#include "launch/command.h"
#include "launch/evaluation.h"
#include "parallel/process_grid.h"

namespace capstan::launch {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t text_limit = std::int64_t(1) << 20, page_limit = std::int64_t(2) << 20;

/// As typed, but for quotes.
std::string command_line(const Arguments& arguments, const std::string& output) {
  std::string line = "capstan report";
  for (const std::string& run : arguments.positionals("RUN")) line += " " + run;
  line += " --output " + output;
  for (const char* option : {"csv", "text", "model"})
    if (!arguments.text(option).empty()) line += fmt::format(" --{} {}", option, arguments.text(option));
  if (arguments.given("tokens")) line += fmt::format(" --tokens {}", arguments.integer("tokens"));
  return line;
}

framework::TextPositions positions_of(const std::string& folder, const std::string& name, const std::string& text,
                                      std::int64_t tokens) {
  const framework::LoadedModel loaded = framework::load_model(folder, kernels::Device::cpu, kernels::DType::f32);
  if (!loaded.tokenizer)
    fail(ExitCode::bad_data,
         "{}: the model has no tokenizer, so --text cannot be read; import it with --tokenizer FILE", folder);
  const auto ids =
      framework::report_tokens(*loaded.tokenizer, loaded.header.bos, loaded.model->config().vocabulary, text, tokens);
  framework::TextPositions out = framework::text_positions(*loaded.model, ids);
  out.model = name;
  out.tokens = framework::token_names(*loaded.tokenizer, loaded.header.bos, ids);
  return out;
}

/// Of --model, or of every run that has a checkpoint.
void add_texts(framework::Report& report, const Arguments& arguments) {
  const std::string file = arguments.text("text"), model = arguments.text("model");
  const std::int64_t tokens = arguments.integer("tokens");
  if (file.empty()) {
    for (const char* option : {"model", "tokens"})
      if (arguments.given(option)) fail(ExitCode::usage, "--{} goes with --text FILE, whose positions it maps", option);
    return;
  }
  const std::string text = framework::read_file(file, text_limit);
  if (!framework::is_utf8(text)) fail(ExitCode::bad_data, "{}: not UTF-8; convert the text", file);
  report.text_name = file;
  if (!model.empty()) {
    report.texts.push_back(positions_of(framework::resolve_model_folder(model), model, text, tokens));
    return;
  }
  for (const framework::ReportRun& run : report.runs)
    if (!run.checkpoint.empty())
      report.texts.push_back(positions_of(framework::resolve_model_folder(run.folder), run.name, text, tokens));
  if (report.texts.empty())
    fail(ExitCode::bad_data, "--text {}: no run has a checkpoint to read it with; name one with --model DIR", file);
}

ExitCode run_report(const Arguments& arguments, parallel::Communicator& world) {
  kernels::set_threads(parallel::threads_of_rank(world, 0));  // asks all ranks
  if (world.rank() != 0) return ExitCode::done;
  const std::vector<std::string>& folders = arguments.positionals("RUN");
  std::string output = arguments.text("output");
  if (output.empty() && folders.size() > 1)
    fail(ExitCode::usage, "{} runs: name the page with --output FILE.html", folders.size());
  if (output.empty()) output = (fs::path(folders.front()) / "report.html").string();

  framework::Report report;
  report.runs = framework::read_runs(folders);
  check_result_path("output", output);
  check_result_path("csv", arguments.text("csv"));
  add_texts(report, arguments);
  report.command = command_line(arguments, output);
  report.build = kernels::build_text();
  const std::string page = framework::report_page(report);
  if (std::int64_t(page.size()) > page_limit)
    fail(ExitCode::config, "the page would be {} bytes, more than {}; name fewer runs, or fewer --tokens", page.size(),
         page_limit);
  write_result(world, output, page);
  write_result(world, arguments.text("csv"), framework::report_csv(report.runs));
  return ExitCode::done;
}

}  // namespace

Command report_command() {
  Command command;
  command.syntax.command = "report";
  command.syntax.summary = "Makes one HTML page of runs: curves, evaluations, positions, differences of their configs.";
  command.syntax.positionals = {
      {"RUN", "run folder, or a model folder with evaluations in eval/; all of one tokenizer", true, true}};
  command.syntax.options = {
      CommandOption::text("output", "", "FILE.html", "The page; with one run by default its report.html."),
      CommandOption::text("csv", "", "FILE", "Also writes the summary table there, with all digits."),
      CommandOption::text("text", "", "FILE",
                          "Maps the positions of this text's first tokens: CoPE's gates and positions, TAPE's states."),
      CommandOption::text("model", "", "DIR",
                          "With --text: the model that reads it; by default every run's newest checkpoint."),
      CommandOption::integer("tokens", 48, 2, framework::longest_report_text, "tokens",
                             "With --text: how many of its tokens."),
  };
  command.run = run_report;
  return command;
}

}  // namespace capstan::launch
