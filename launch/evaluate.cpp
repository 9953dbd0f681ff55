// capstan eval perplexity, capstan eval passkey, capstan eval needle.

#include <charconv>

#include "framework/needle.h"
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
  options.document_tokens = arguments.integer("document-tokens");
  options.tile = arguments.integer("tile");
  if (options.stride > options.window)
    fail(ExitCode::usage,
         "--stride {} is longer than --window {}: tokens between two windows would not be counted; allowed is 1 to {}",
         options.stride, options.window, options.window);
  if (options.convention == framework::Convention::longlora && arguments.given("documents") && !options.joined)
    fail(ExitCode::usage,
         "--convention longlora reads one joined stream; leave --documents separate out, or use --convention once");
  if (options.document_tokens && (options.joined || options.convention == framework::Convention::longlora))
    fail(ExitCode::usage,
         "--document-tokens {} cuts each document, and here all are one stream; use --convention once and --documents "
         "separate",
         options.document_tokens);
  return options;
}

ExitCode run_perplexity(const Arguments& arguments, parallel::Communicator& all_ranks) {
  const framework::PerplexityOptions options = perplexity_options(arguments);
  check_result_path("json", arguments.text("json"));
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  const auto grid = evaluation_grid(arguments, world);
  const framework::TokenFile data = open_same_data(world, arguments.text("data"));
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  check_same_tokenizer(data, loaded);
  const framework::Journal journal = journal_of(arguments, loaded, "perplexity", {{"data", data.info().checksum}});
  const framework::PerplexityResult result = evaluate_perplexity(*loaded.model, grid, data, options, journal);
  print_on_first(world, perplexity_table(result, loaded.name, data.path()));
  write_result(world, arguments.text("json"), perplexity_json(result, loaded.name, data.path(), grid), journal);
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

/// What every retrieval task does with its plan.
void ask_and_write(const Arguments& arguments, const parallel::ProcessGrid& grid, const EvaluatedModel& loaded,
                   const framework::RetrievalPlan& plan, const framework::Journal& journal) {
  const framework::RetrievalAnswer answer =
      framework::model_answer(*loaded.model, *grid.ring, arguments.integer("tile"));
  const framework::RetrievalResult result = evaluate_retrieval(loaded.need_tokenizer(), grid, plan, answer, journal);
  print_on_first(grid.world, retrieval_table(result, loaded.name));
  write_result(grid.world, arguments.text("json"), retrieval_json(result, loaded.name, grid), journal);
}

void take_retrieval_options(framework::RetrievalOptions& options, const Arguments& arguments) {
  options.lengths = lengths_of(arguments);
  options.depths = arguments.integer("depths");
  options.trials = arguments.integer("trials");
  options.seed = std::uint64_t(arguments.integer("seed"));
}

framework::PasskeyOptions passkey_options(const Arguments& arguments) {
  framework::PasskeyOptions options;
  options.longlora = arguments.text("preset") == "longlora";
  take_retrieval_options(options, arguments);
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
  const framework::Tokenizer& tokenizer = loaded.need_tokenizer();
  ask_and_write(arguments, grid, loaded, passkey_plan(tokenizer, options),
                journal_of(arguments, loaded, "passkey", {}));
  return ExitCode::done;
}

framework::NeedleOptions needle_options(const Arguments& arguments) {
  framework::NeedleOptions options;
  take_retrieval_options(options, arguments);
  options.multikey = arguments.text("task") == "multikey";
  options.keys = arguments.integer("keys");
  if (!options.multikey && arguments.given("keys"))
    fail(ExitCode::usage, "--keys {} needs --task multikey; a prompt of --task single has one needle", options.keys);
  return options;
}

framework::Haystack haystack_of(const Arguments& arguments) {
  const std::string& haystack = arguments.text("haystack");
  return haystack == "noise" ? framework::noise_haystack() : framework::file_haystack(haystack);
}

ExitCode run_needle(const Arguments& arguments, parallel::Communicator& all_ranks) {
  framework::NeedleOptions options = needle_options(arguments);
  check_result_path("json", arguments.text("json"));
  const framework::Haystack haystack = haystack_of(arguments);
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  parallel::require_agreement(world, {{"haystack " + haystack.name, haystack.hash}});
  const auto grid = evaluation_grid(arguments, world);
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  options.bos = loaded.bos;
  ask_and_write(arguments, grid, loaded, needle_plan(loaded.need_tokenizer(), haystack, options),
                journal_of(arguments, loaded, "needle", {{"haystack", haystack.hash}}));
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
       CommandOption::integer("document-tokens", 0, 0, std::int64_t(1) << 40, "tokens",
                              "Only so many at each document's start, the same for every window; 0: all."),
       CommandOption::text("json", "", "FILE",
                           "Also writes the result there; run again after a kill, it goes on from FILE.part.")});
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
       CommandOption::text(
           "json", "", "FILE",
           "Also writes the result there, with every prompt's tail and answer; run again after a kill, it goes on from "
           "FILE.part.")});
  command.run = run_passkey;
  return command;
}

Command needle_command() {
  Command command;
  command.syntax = model_syntax(
      "eval needle", "Asks for a key's number, hidden in a long text as RULER does; greedy, contained in the answer.",
      1,
      {CommandOption::text("lengths", "", "L,…", "Prompt lengths in tokens, with BOS and question.").needed(),
       CommandOption::choice("task", "single", {"single", "multikey"},
                             "single: one needle. multikey: --keys of them, of which one is asked for."),
       CommandOption::integer("keys", 4, 1, framework::largest_needles, "needles",
                              "In a prompt of multikey, the asked one among them."),
       CommandOption::text("haystack", "noise", "noise|FILE", "RULER's five sentences again and again, or a text's."),
       CommandOption::integer("depths", 5, 1, 1000, "depths",
                              "Places of the asked needle, evenly from the start to the end; one: the middle."),
       CommandOption::integer("trials", 4, 1, 1000000, "prompts", "Prompts per length and depth."),
       CommandOption::integer("seed", 1, 0, std::int64_t(1) << 52, "", "Of keys, numbers and the others' places."),
       CommandOption::text("json", "", "FILE",
                           "Also writes the result there, with every prompt's tail and answer; run again after a kill, "
                           "it goes on from FILE.part.")});
  command.run = run_needle;
  return command;
}

}  // namespace capstan::launch
