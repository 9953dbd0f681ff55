// capstan generate: the continuation of a prompt, or whole documents.

#include <unistd.h>

#include <cstdio>

#include "framework/generator.h"
#include "framework/json.h"
#include "launch/command.h"
#include "launch/evaluation.h"

namespace capstan::launch {

namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;

/// One line of JSON; broken UTF-8 becomes U+FFFD.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Ids with_bos(const EvaluatedModel& loaded, const std::string& prompt) {
  Ids ids = loaded.need_tokenizer().encode(prompt);
  if (loaded.bos >= 0) ids.insert(ids.begin(), loaded.bos);
  if (ids.empty())
    fail(ExitCode::usage, "--prompt is empty and the model has no BOS token; give at least one character");
  for (const std::int32_t id : ids)
    if (id >= loaded.model->config().vocabulary)
      fail(ExitCode::bad_data,
           "{}: its tokenizer gives id {}, the model knows ids 0 to {}; import the model with its own tokenizer",
           loaded.folder, id, loaded.model->config().vocabulary - 1);
  return ids;
}

void generate_text(const Arguments& arguments, const EvaluatedModel& loaded, const parallel::ProcessGrid& grid,
                   const framework::Sampling& sampling) {
  const Ids prompt = with_bos(loaded, arguments.text("prompt"));
  if (grid.data_rank != 0) return;  // one text is one ring's work
  framework::Generator generator(*loaded.model, *grid.ring, loaded.tile, arguments.integer("prefill-chunk"));
  const framework::Generated made =
      generate_tokens(generator, prompt, arguments.integer("tokens"), loaded.ends, sampling);
  Ids all = prompt;
  all.insert(all.end(), made.ids.begin(), made.ids.end());
  const std::string text = loaded.need_tokenizer().decode(all);
  print_on_first(grid.world, text + "\n");
  write_result(
      grid.world, arguments.text("output"),
      dump({{"text", text}, {"prompt_ids", prompt}, {"ids", made.ids}, {"ended", made.ended}, {"model", loaded.name}}));
}

/// On a terminal one line that is written over; elsewhere nothing.
void show_progress(std::int64_t made, std::int64_t wanted) {
  if (isatty(STDERR_FILENO))
    std::fprintf(stderr, "\r%lld of %lld documents%s", (long long)made, (long long)wanted, made >= wanted ? "\n" : "");
}

void generate_documents(const Arguments& arguments, const EvaluatedModel& loaded, const parallel::ProcessGrid& grid,
                        const framework::Sampling& sampling) {
  framework::DocumentOptions options;
  options.documents = arguments.integer("documents");
  options.max_tokens =
      arguments.integer("max-tokens") ? arguments.integer("max-tokens") : loaded.model->config().max_length;
  if (options.max_tokens <= 0) fail(ExitCode::usage, "the model names no longest length; give --max-tokens");
  if (loaded.ends.empty())
    fail(
        ExitCode::bad_data,
        "{}: names no end token, so none of its documents would end; train it on token files made with capstan prepare "
        "--end, or import it with --end-token ID",
        loaded.folder);
  options.bos = loaded.bos;
  options.ends = loaded.ends;
  options.sampling = sampling;
  options.tile = loaded.tile;
  options.progress = show_progress;
  const framework::Tokenizer& tokenizer = loaded.need_tokenizer();
  const framework::GeneratedDocuments made = framework::generate_documents(*loaded.model, grid, options);
  std::string lines;
  for (const Ids& ids : made.documents) lines += dump({{"text", tokenizer.decode(ids)}});
  print_on_first(
      grid.world,
      fmt::format("{} documents, {} tokens with BOS and end; dropped: {} unfinished after {} tokens, {} empty\n",
                  made.documents.size(), made.tokens, made.unfinished, options.max_tokens, made.empty));
  write_result(grid.world, arguments.text("output"), lines);
}

ExitCode run_generate(const Arguments& arguments, parallel::Communicator& all_ranks) {
  const bool documents = arguments.given("documents");
  if (documents == arguments.given("prompt"))
    fail(ExitCode::usage, "generate needs either --prompt TEXT or --documents N");
  if (documents && arguments.text("output").empty()) fail(ExitCode::usage, "--documents needs --output FILE.jsonl");
  if (documents && arguments.given("tokens"))
    fail(ExitCode::usage, "--tokens goes with --prompt; documents end by themselves, see --max-tokens");
  if (documents && arguments.given("prefill-chunk"))
    fail(ExitCode::usage, "--prefill-chunk goes with --prompt; documents begin with one token");
  if (!documents && arguments.given("max-tokens"))
    fail(ExitCode::usage, "--max-tokens goes with --documents; a text has --tokens");
  const framework::Sampling sampling{arguments.real("temperature"), std::uint64_t(arguments.integer("seed"))};
  if (arguments.given("seed") && sampling.temperature <= 0)
    fail(ExitCode::usage, "--seed without --temperature changes nothing: temperature 0 is greedy; add --temperature 1");
  check_result_path("output", arguments.text("output"));
  const parallel::OnDevice place = evaluation_place(arguments, all_ranks);
  parallel::Communicator& world = place.world();
  const EvaluatedModel loaded = load_evaluated_model(arguments, world);
  // One text uses all ranks together; documents are made one by each rank.
  const std::int64_t ring = documents && !arguments.given("ring") ? 1 : arguments.integer("ring");
  const parallel::ProcessGrid grid = parallel::make_process_grid(world, ring ? int(ring) : world.size());
  (documents ? generate_documents : generate_text)(arguments, loaded, grid, sampling);
  return ExitCode::done;
}

}  // namespace

Command generate_command() {
  Command command;
  command.syntax = model_syntax(
      "generate", "Continues a prompt, or writes whole documents.", 0,
      {CommandOption::text("prompt", "", "TEXT", "Text to continue; BOS goes before it. Empty: from BOS alone."),
       CommandOption::integer("tokens", 128, 1, std::int64_t(1) << 30, "tokens",
                              "Most tokens after the prompt; an end token stops earlier."),
       CommandOption::integer(
           "documents", 1, 1, std::int64_t(1) << 40, "documents",
           "Whole documents instead, from BOS to an end token; each rank makes its own unless --ring is given."),
       CommandOption::integer("prefill-chunk", 0, 0, std::int64_t(1) << 30, "tokens",
                              "Tokens of a long prompt taken at a time, against the keys before them; 0: all at once."),
       CommandOption::integer("max-tokens", 0, 0, std::int64_t(1) << 30, "tokens",
                              "A document that has not ended by then is dropped; 0: the model's longest length."),
       CommandOption::real("temperature", 0, 0, 100, "", "0: greedy."),
       CommandOption::integer("seed", 0, 0, std::int64_t(1) << 52, "",
                              "Of the draws at a temperature; document i is the same for any ranks."),
       CommandOption::text("output", "", "FILE",
                           "Documents: a line {\"text\": …} each. Prompt: one such line, with the ids.")});
  command.run = run_generate;
  return command;
}

}  // namespace capstan::launch
