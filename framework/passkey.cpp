#include "framework/passkey.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "framework/json.h"
#include "framework/random.h"

namespace capstan::framework {

namespace {

constexpr std::int64_t tail_tokens = 32;

/// The first n characters of the sentence repeated with single spaces.
std::string garbage_text(std::int64_t n) {
  static const std::string sentence =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
  std::string text;
  text.reserve(static_cast<std::size_t>(n));
  while (std::int64_t(text.size()) < n) text.append(sentence, 0, static_cast<std::size_t>(n) - text.size());
  return text;
}

std::string key_text(const PasskeyDraw& draw) { return fmt::format(" {}", draw.key); }

std::int64_t prompt_tokens(const Tokenizer& tokenizer, std::int32_t bos, const PasskeyDraw& draw) {
  return std::int64_t(tokenizer.encode(passkey_text(draw)).size()) + (bos >= 0 ? 1 : 0);
}

PasskeyDraw draw_at(std::int64_t garbage, double depth, std::int32_t key) {
  return {garbage, std::llround(depth * double(garbage)), key};
}

double depth_at(std::int64_t which, std::int64_t depths) {
  return depths == 1 ? 0.5 : double(which) / double(depths - 1);
}

}  // namespace

std::string passkey_text(const PasskeyDraw& draw) {
  CAPSTAN_CHECK(draw.prefix >= 0 && draw.prefix <= draw.garbage, "{} characters before the key, {} in all", draw.prefix,
                draw.garbage);
  return fmt::format(
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
      "about the important "
      "information there.\n{}\nThe pass key is {}. Remember it. {} is the pass key.\n{}\nWhat is the pass key? The "
      "pass key is",
      garbage_text(draw.prefix), draw.key, draw.key, garbage_text(draw.garbage - draw.prefix));
}

PasskeyPrompt passkey_prompt(const Tokenizer& tokenizer, std::int32_t bos, const PasskeyDraw& draw) {
  const std::string text = passkey_text(draw);
  const std::vector<std::int32_t> whole = tokenizer.encode(text + key_text(draw)), prompt = tokenizer.encode(text);
  // Where a tokenizer joins the question's end and the answer in one token, the prompt ends before that token.
  const auto split = std::mismatch(prompt.begin(), prompt.end(), whole.begin(), whole.end()).second;
  PasskeyPrompt made{draw, {}, {split, whole.end()}};
  if (bos >= 0) made.ids.push_back(bos);
  made.ids.insert(made.ids.end(), whole.begin(), split);
  return made;
}

PasskeyPrompt fitted_prompt(const Tokenizer& tokenizer, std::int32_t bos, std::int64_t length, double depth,
                            std::int32_t key) {
  const auto tokens = [&](std::int64_t garbage) { return prompt_tokens(tokenizer, bos, draw_at(garbage, depth, key)); };
  const std::int64_t least = tokens(0);
  if (least > length)
    fail(ExitCode::usage, "--lengths {}: the prompt without any garbage has {} tokens with {}; ask for more", length,
         least, tokenizer.name());
  // About four characters a token at most; then halve the gap between what fits and what does not.
  std::int64_t fits = 0, over = 4 * (length - least) + 64;
  for (; tokens(over) <= length; over *= 2) fits = over;
  while (over - fits > 1) {
    const std::int64_t middle = fits + (over - fits) / 2;
    (tokens(middle) <= length ? fits : over) = middle;
  }
  // One more character may join two tokens into one, so the count is not quite monotone.
  constexpr std::int64_t look_ahead = 16;
  for (std::int64_t garbage = fits + look_ahead; garbage > fits; --garbage)
    if (tokens(garbage) <= length) fits = garbage;
  return passkey_prompt(tokenizer, bos, draw_at(fits, depth, key));
}

PasskeyAnswer model_answer(Model& model, parallel::Communicator& ring, std::int64_t tile) {
  return [&model, &ring, tile](const PasskeyPrompt& prompt) {
    for (const std::int32_t id : prompt.ids)
      if (id >= model.config().vocabulary)
        fail(ExitCode::bad_data, "a prompt holds id {}; the model knows ids 0 to {}; give the model its own tokenizer",
             id, model.config().vocabulary - 1);
    Generator generator(model, ring, tile);
    return generate_tokens(generator, prompt.ids, std::int64_t(prompt.expected.size()), {}, {}).ids;
  };
}

namespace {

/// Cells and how prompt `number` is made: cell by cell, trials innermost.
struct Plan {
  std::vector<PasskeyCell> cells;
  std::int64_t trials;
  std::function<PasskeyPrompt(std::int64_t number)> prompt;
  std::int64_t prompts() const { return std::int64_t(cells.size()) * trials; }
};

Plan longlora_plan(const Tokenizer& tokenizer, const PasskeyOptions& options) {
  Plan plan{{}, longlora_trials, {}};
  const std::vector<PasskeyDraw> draws = longlora_draws();
  for (std::int64_t i = 0; i < longlora_lengths; ++i)
    plan.cells.push_back(
        {prompt_tokens(tokenizer, options.bos, draws[static_cast<std::size_t>(i * longlora_trials)]), -1});
  plan.prompt = [&tokenizer, draws, bos = options.bos](std::int64_t number) {
    return passkey_prompt(tokenizer, bos, draws[static_cast<std::size_t>(number)]);
  };
  return plan;
}

Plan own_plan(const Tokenizer& tokenizer, const PasskeyOptions& options) {
  Plan plan{{}, options.trials, {}};
  for (const std::int64_t length : options.lengths)
    for (std::int64_t d = 0; d < options.depths; ++d) plan.cells.push_back({length, depth_at(d, options.depths)});
  plan.prompt = [&tokenizer, cells = plan.cells, options](std::int64_t number) {
    const std::int64_t cell = number / options.trials, depth = cell % options.depths, trial = number % options.trials;
    const PasskeyCell& asked = cells[static_cast<std::size_t>(cell)];
    // A pure function of (seed, length, depth, trial): other lengths in the list change no key.
    const std::uint64_t stream = stream_of("passkey") ^ std::uint64_t(asked.length),
                        counter = std::uint64_t(depth) << 32 | std::uint64_t(trial);
    const std::int64_t key = 1 + random_below(options.seed, stream, counter, largest_key);
    return fitted_prompt(tokenizer, options.bos, asked.length, asked.depth, std::int32_t(key));
  };
  return plan;
}

nlohmann::json to_json(const PasskeyOutcome& outcome) {
  return {{"cell", outcome.cell}, {"tokens", outcome.tokens},     {"depth", outcome.depth}, {"key", outcome.key},
          {"tail", outcome.tail}, {"expected", outcome.expected}, {"given", outcome.given}};
}

PasskeyOutcome from_json(const nlohmann::json& json) {
  return {json.at("cell"), json.at("tokens"),   json.at("depth"), json.at("key"),
          json.at("tail"), json.at("expected"), json.at("given")};
}

}  // namespace

std::int64_t PasskeyResult::correct() const {
  return std::count_if(prompts.begin(), prompts.end(), [](const PasskeyOutcome& outcome) { return outcome.correct(); });
}

PasskeyResult evaluate_passkey(const Tokenizer& tokenizer, const parallel::ProcessGrid& grid,
                               const PasskeyOptions& options, const PasskeyAnswer& answer, const Journal& journal) {
  CAPSTAN_CHECK(options.longlora || (!options.lengths.empty() && options.depths > 0 && options.trials > 0),
                "nothing to ask");
  const Plan plan = options.longlora ? longlora_plan(tokenizer, options) : own_plan(tokenizer, options);
  constexpr auto replace = nlohmann::json::error_handler_t::replace;  // a tail may begin inside a character
  const std::vector<std::string> items = collect_items(grid, journal, plan.prompts(), [&](std::int64_t number) {
    const PasskeyPrompt prompt = plan.prompt(number);
    const double depth = prompt.draw.garbage ? double(prompt.draw.prefix) / double(prompt.draw.garbage) : 0;
    const auto tail = prompt.ids.end() - std::min<std::ptrdiff_t>(std::ssize(prompt.ids), tail_tokens);
    const PasskeyOutcome outcome{number / plan.trials,
                                 std::ssize(prompt.ids),
                                 depth,
                                 prompt.draw.key,
                                 tokenizer.decode({tail, prompt.ids.end()}),
                                 prompt.expected,
                                 answer(prompt)};
    return to_json(outcome).dump(-1, ' ', false, replace);
  });
  PasskeyResult result{options, tokenizer.name(), plan.cells, {}};
  for (const std::string& item : items) result.prompts.push_back(from_json(nlohmann::json::parse(item)));
  for (const PasskeyOutcome& outcome : result.prompts) {
    PasskeyCell& cell = result.cells.at(static_cast<std::size_t>(outcome.cell));
    ++cell.trials;
    cell.correct += outcome.correct();
  }
  return result;
}

std::string passkey_json(const PasskeyResult& result, const std::string& model, const parallel::ProcessGrid& grid) {
  using Json = nlohmann::ordered_json;
  const auto depth_of = [](double depth) { return depth < 0 ? Json() : Json(depth); };
  Json json;
  json["accuracy"] = result.accuracy();
  json["correct"] = result.correct();
  json["trials"] = result.prompts.size();
  json["preset"] = result.options.longlora ? Json("longlora") : Json();
  json["seed"] = result.options.longlora ? Json() : Json(result.options.seed);
  json["scoring"] = "greedy, exact match of all answer tokens";
  json["lengths_count"] = "prompt tokens with BOS and question";
  json["bos"] = result.options.bos < 0 ? Json("none") : Json(result.options.bos);
  json["tokenizer"] = result.tokenizer;
  json["model"] = model;
  json["cells"] = Json::array();
  for (const PasskeyCell& cell : result.cells)
    json["cells"].push_back(
        {{"length", cell.length}, {"depth", depth_of(cell.depth)}, {"correct", cell.correct}, {"trials", cell.trials}});
  json["prompts"] = Json::array();
  for (const PasskeyOutcome& outcome : result.prompts)
    json["prompts"].push_back({{"length", result.cells[static_cast<std::size_t>(outcome.cell)].length},
                               {"tokens", outcome.tokens},
                               {"depth", outcome.depth},
                               {"key", outcome.key},
                               {"tail", outcome.tail},
                               {"expected", outcome.expected},
                               {"given", outcome.given},
                               {"correct", outcome.correct()}});
  json["ranks"] = {{"data", grid.data_size}, {"ring", grid.ring_size}};
  return json.dump(2) + "\n";
}

std::string passkey_table(const PasskeyResult& result, const std::string& model) {
  std::string text = fmt::format(
      "  model    {}\n  prompts  {}, keys 1 to {}, greedy, exact match; lengths are tokens with {} and question\n",
      model, result.options.longlora ? "preset longlora" : fmt::format("seed {}", result.options.seed), largest_key,
      result.options.bos < 0 ? "no BOS" : "one BOS");
  text += fmt::format("  {:>8}  {:>6}  {:>7}  {:>6}\n", "length", "depth", "correct", "trials");
  for (const PasskeyCell& cell : result.cells)
    text += fmt::format("  {:>8}  {:>6}  {:>7}  {:>6}\n", cell.length,
                        cell.depth < 0 ? "drawn" : fmt::format("{:.2f}", cell.depth), cell.correct, cell.trials);
  text += fmt::format("  accuracy {:.4f}  ({} of {})\n", result.accuracy(), result.correct(), result.prompts.size());
  return text;
}

}  // namespace capstan::framework
