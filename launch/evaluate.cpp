// capstan eval perplexity, capstan eval passkey.

#include <charconv>

#include "framework/passkey.h"
#include "framework/perplexity.h"
#include "launch/command.h"
#include "launch/evaluation.h"
#include "parallel/agreement.h"

namespace capstan::launch {

namespace {

framework::PerplexityOptions perplexity_options(const Arguments& arguments) {
  framework::PerplexityOptions options;
  options.window = arguments.integer("window");
  options.stride = arguments.integer("stride");
  options.convention =
      arguments.text("convention") == "longlora" ? framework::Convention::longlora : framework::Convention::once;
  options.joined = arguments.text("documents") == "joined";
  options.max_windows = arguments.integer("max-windows");
  options.tile = arguments.integer("tile");
  if (options.stride > options.window)
    fail(ExitCode::usage,
         "--stride {} is longer than --window {}: tokens between two windows would not be counted; allowed is 1 to {}",
         options.stride, options.window, options.window);
  if (options.convention == framework::Convention::longlora && arguments.given("documents") && !options.joined)
    fail(ExitCode::usage,
         "--convention longlora reads one joined stream; leave --documents separate out, or use --convention once");
  return options;
}

ExitCode run_perplexity(const Arguments& arguments, parallel::Communicator& all_ranks) {
  const framework::PerplexityOptions options = perplexity_options(arguments);
  check_result_path("json", arguments.text("json"));
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  const auto grid = evaluation_grid(arguments, world);
  const auto data = framework::TokenFile::open(arguments.text("data"));
  parallel::require_agreement(world, {{"data file " + data.path(), data.info().checksum}});
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  check_same_tokenizer(data, loaded);
  const framework::PerplexityResult result = evaluate_perplexity(*loaded.model, grid, data, options);
  print_on_first(world, perplexity_table(result, loaded.name, data.path()));
  write_result(world, arguments.text("json"), perplexity_json(result, loaded.name, data.path(), grid));
  return ExitCode::done;
}

std::vector<std::int64_t> lengths_of(const Arguments& arguments) {
  std::vector<std::int64_t> lengths;
  for (const std::string& text : framework::split_list(arguments.text("lengths"))) {
    std::int64_t length = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), length);
    if (problem != std::errc() || end != text.data() + text.size() || length < 1)
      fail(ExitCode::usage, "--lengths: {} is not a number of tokens; write --lengths 1024,2048", text);
    lengths.push_back(length);
  }
  return lengths;
}

framework::PasskeyOptions passkey_options(const Arguments& arguments) {
  framework::PasskeyOptions options;
  options.longlora = arguments.text("preset") == "longlora";
  options.lengths = lengths_of(arguments);
  options.depths = arguments.integer("depths");
  options.trials = arguments.integer("trials");
  options.seed = std::uint64_t(arguments.integer("seed"));
  options.tile = arguments.integer("tile");
  for (const char* own : {"lengths", "depths", "trials", "seed"})
    if (options.longlora && arguments.given(own))
      fail(ExitCode::usage, "--preset longlora brings its own --{}; leave one of them out", own);
  if (!options.longlora && options.lengths.empty())
    fail(ExitCode::usage,
         "eval passkey needs --lengths L,… (prompt tokens with BOS and question) or --preset longlora");
  return options;
}

ExitCode run_passkey(const Arguments& arguments, parallel::Communicator& all_ranks) {
  framework::PasskeyOptions options = passkey_options(arguments);
  check_result_path("json", arguments.text("json"));
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  const auto grid = evaluation_grid(arguments, world);
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  options.bos = loaded.bos;
  const framework::PasskeyResult result = evaluate_passkey(
      loaded.need_tokenizer(), grid, options, framework::model_answer(*loaded.model, *grid.ring, options.tile));
  print_on_first(world, passkey_table(result, loaded.name));
  write_result(world, arguments.text("json"), passkey_json(result, loaded.name, grid));
  return ExitCode::done;
}

}  // namespace

Command perplexity_command() {
  Command command;
  command.syntax = model_syntax(
      "eval perplexity",
      "Measures perplexity on a token file; --position.* options stretch the model without training.", 1,
      {CommandOption::text("data", "", "FILE", "Token file (capstan prepare).").needed(),
       CommandOption::integer("window", 0, 1, std::int64_t(1) << 30, "tokens", "Tokens that the model reads at once.")
           .needed(),
       CommandOption::integer("stride", 0, 0, std::int64_t(1) << 30, "tokens",
                              "From one window to the next; 0: half a window."),
       CommandOption::choice(
           "convention", "once", {"once", "longlora"},
           "once: each token counts once, after the first window with at least window - stride tokens before it. "
           "longlora: every position of every window counts, over one joined stream."),
       CommandOption::choice("documents", "separate", {"separate", "joined"},
                             "separate: windows stay within a document. joined: one stream over all documents."),
       CommandOption::integer("max-windows", 0, 0, std::int64_t(1) << 40, "windows", "Only the first ones; 0: all."),
       CommandOption::text("json", "", "FILE", "Also writes the result there.")});
  command.run = run_perplexity;
  return command;
}

Command passkey_command() {
  Command command;
  command.syntax = model_syntax(
      "eval passkey", "Asks for a number hidden in a long text; greedy, exact match.", 1,
      {CommandOption::text("lengths", "", "L,…", "Prompt lengths in tokens, with BOS and question."),
       CommandOption::integer("depths", 5, 1, 1000, "depths",
                              "Places of the key, evenly from the start to the end; one: the middle."),
       CommandOption::integer("trials", 4, 1, 1000000, "keys", "Keys per length and depth."),
       CommandOption::integer("seed", 1, 0, std::int64_t(1) << 52, "", "Of the keys."),
       CommandOption::choice("preset", "none", {"none", "longlora"},
                             "longlora: the 8 lengths × 20 draws of its evaluation."),
       CommandOption::text("json", "", "FILE", "Also writes the result there, with every prompt's tail and answer.")});
  command.run = run_passkey;
  return command;
}

}  // namespace capstan::launch
