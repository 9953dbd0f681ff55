#include "framework/retrieval.h"

#include <algorithm>

#include "framework/json.h"

namespace capstan::framework {

// ---- prompts --------------------------------------------------------------------------------------------------------

RetrievalPrompt prompt_of(const Tokenizer& tokenizer, std::int32_t bos, const std::string& text, std::int64_t number) {
  const std::vector<std::int32_t> whole = tokenizer.encode(fmt::format("{} {}", text, number)),
                                  prompt = tokenizer.encode(text);
  // Where a tokenizer joins the question's end and the answer in one token, the prompt ends before that token.
  const auto split = std::mismatch(prompt.begin(), prompt.end(), whole.begin(), whole.end()).second;
  RetrievalPrompt made;
  made.expected.assign(split, whole.end());
  made.number = number;
  if (bos >= 0) made.ids.push_back(bos);
  made.ids.insert(made.ids.end(), whole.begin(), split);
  return made;
}

std::int64_t prompt_tokens(const Tokenizer& tokenizer, std::int32_t bos, const std::string& text) {
  return std::int64_t(tokenizer.encode(text).size()) + (bos >= 0 ? 1 : 0);
}

std::int64_t largest_fitting(const std::function<std::int64_t(std::int64_t)>& tokens, std::int64_t length,
                             std::int64_t guess, std::int64_t most, std::int64_t dips) {
  std::int64_t fits = 0, over = std::min(guess, most + 1);
  for (; over <= most && tokens(over) <= length; over = std::min(2 * over, most + 1)) fits = over;
  while (over - fits > 1) {
    const std::int64_t middle = fits + (over - fits) / 2;
    (tokens(middle) <= length ? fits : over) = middle;
  }
  for (std::int64_t n = std::min(fits + dips, most); n > fits; --n)
    if (tokens(n) <= length) fits = n;
  return fits;
}

std::vector<RetrievalCell> cells_of(const RetrievalOptions& options) {
  const auto depth_of = [&](std::int64_t which) {
    return options.depths == 1 ? 0.5 : double(which) / double(options.depths - 1);
  };
  CAPSTAN_CHECK(!options.lengths.empty() && options.depths > 0 && options.trials > 0, "nothing to ask");
  std::vector<RetrievalCell> cells;
  for (const std::int64_t length : options.lengths)
    for (std::int64_t d = 0; d < options.depths; ++d) cells.push_back({length, depth_of(d)});
  return cells;
}

// ---- answers --------------------------------------------------------------------------------------------------------

RetrievalAnswer model_answer(Model& model, parallel::Communicator& ring, std::int64_t tile) {
  return [&model, &ring, tile](const RetrievalPrompt& prompt, std::int64_t tokens) {
    for (const std::int32_t id : prompt.ids)
      if (id >= model.config().vocabulary)
        fail(ExitCode::bad_data, "a prompt holds id {}; the model knows ids 0 to {}; give the model its own tokenizer",
             id, model.config().vocabulary - 1);
    Generator generator(model, ring, tile);
    return generate_tokens(generator, prompt.ids, tokens, {}, {}).ids;
  };
}

namespace {

constexpr std::int64_t tail_tokens = 32;

bool is_right(Scoring scoring, const RetrievalOutcome& outcome) {
  if (scoring == Scoring::exact) return outcome.given == outcome.expected;
  return outcome.given_text.find(std::to_string(outcome.number)) != std::string::npos;
}

RetrievalOutcome ask(const Tokenizer& tokenizer, const RetrievalPlan& plan, const RetrievalAnswer& answer,
                     std::int64_t number) {
  const RetrievalPrompt prompt = plan.prompt(number);
  const auto tail = prompt.ids.end() - std::min<std::ptrdiff_t>(std::ssize(prompt.ids), tail_tokens);
  RetrievalOutcome outcome;
  outcome.cell = number / plan.trials;
  outcome.tokens = std::ssize(prompt.ids);
  outcome.depth = prompt.depth;
  outcome.number = prompt.number;
  outcome.name = prompt.name;
  outcome.tail = tokenizer.decode({tail, prompt.ids.end()});
  outcome.expected = prompt.expected;
  const std::int64_t spare = plan.task.scoring == Scoring::contains ? spare_tokens : 0;
  outcome.given = answer(prompt, std::ssize(prompt.expected) + spare);
  outcome.given_text = tokenizer.decode(outcome.given);
  outcome.correct = is_right(plan.task.scoring, outcome);
  return outcome;
}

// ---- as JSON --------------------------------------------------------------------------------------------------------

using Json = nlohmann::ordered_json;
constexpr auto replace = Json::error_handler_t::replace;  // a tail may begin inside a character

/// What a prompt's item in the journal and its entry in the result share. A number that nobody names is itself the key.
Json to_json(const RetrievalOutcome& outcome) {
  Json json = {{"tokens", outcome.tokens}, {"depth", outcome.depth}};
  if (outcome.name.empty()) {
    json["key"] = outcome.number;
  } else {
    json["key"] = outcome.name;
    json["value"] = outcome.number;
  }
  json["tail"] = outcome.tail;
  json["expected"] = outcome.expected;
  json["given"] = outcome.given;
  json["given_text"] = outcome.given_text;
  json["correct"] = outcome.correct;
  return json;
}

RetrievalOutcome from_json(const Json& json, std::int64_t cell) {
  const bool is_named = json.contains("value");
  return {cell,
          json.at("tokens"),
          json.at("depth"),
          json.at(is_named ? "value" : "key"),
          is_named ? json.at("key").get<std::string>() : "",
          json.at("tail"),
          json.at("expected"),
          json.at("given"),
          json.at("given_text"),
          json.at("correct")};
}

std::string scoring_text(Scoring scoring) {
  return scoring == Scoring::exact
             ? "greedy, exact match of all answer tokens"
             : fmt::format("greedy; the text of the answer's tokens and {} more contains the number", spare_tokens);
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

}  // namespace

std::int64_t RetrievalResult::correct() const {
  return std::count_if(prompts.begin(), prompts.end(), [](const RetrievalOutcome& outcome) { return outcome.correct; });
}

RetrievalResult evaluate_retrieval(const Tokenizer& tokenizer, const parallel::ProcessGrid& grid,
                                   const RetrievalPlan& plan, const RetrievalAnswer& answer, const Journal& journal) {
  const std::vector<std::string> items = collect_items(grid, journal, plan.prompts(), [&](std::int64_t number) {
    return to_json(ask(tokenizer, plan, answer, number)).dump(-1, ' ', false, replace);
  });
  RetrievalResult result{plan.task, tokenizer.name(), plan.cells, {}};
  for (std::size_t i = 0; i < items.size(); ++i) {
    result.prompts.push_back(from_json(Json::parse(items[i]), std::int64_t(i) / plan.trials));
    RetrievalCell& cell = result.cells[i / std::size_t(plan.trials)];
    ++cell.trials;
    cell.correct += result.prompts.back().correct;
  }
  return result;
}

std::string retrieval_json(const RetrievalResult& result, const std::string& model, const parallel::ProcessGrid& grid) {
  const RetrievalTask& task = result.task;
  Json json;
  json["task"] = task.name;
  json["accuracy"] = result.accuracy();
  json["correct"] = result.correct();
  json["trials"] = result.prompts.size();
  json["preset"] = or_null(task.preset);
  json["seed"] = task.preset.empty() ? Json(task.seed) : Json();
  if (!task.haystack.empty()) {
    json["haystack"] = task.haystack;
    json["haystack_hash"] = or_null(task.haystack_hash);
    json["keys"] = task.keys;
  }
  json["scoring"] = scoring_text(task.scoring);
  json["lengths_count"] = "prompt tokens with BOS and question";
  json["bos"] = task.bos < 0 ? Json("none") : Json(task.bos);
  json["tokenizer"] = result.tokenizer;
  json["model"] = model;
  json["cells"] = Json::array();
  for (const RetrievalCell& cell : result.cells)
    json["cells"].push_back({{"length", cell.length},
                             {"depth", cell.depth < 0 ? Json() : Json(cell.depth)},
                             {"correct", cell.correct},
                             {"trials", cell.trials}});
  json["prompts"] = Json::array();
  for (const RetrievalOutcome& outcome : result.prompts) {
    Json entry = {{"length", result.cells[static_cast<std::size_t>(outcome.cell)].length}};
    entry.update(to_json(outcome));
    json["prompts"].push_back(entry);
  }
  json["ranks"] = {{"data", grid.data_size}, {"ring", grid.ring_size}};
  return json.dump(2, ' ', false, replace) + "\n";
}

std::string retrieval_table(const RetrievalResult& result, const std::string& model) {
  const RetrievalTask& task = result.task;
  std::string text = fmt::format("  model    {}\n  task     {}", model, task.name);
  if (!task.haystack.empty()) text += fmt::format(", haystack {}, needles {}", task.haystack, task.keys);
  text += fmt::format("\n  prompts  {}; lengths are tokens with {} and question\n  scoring  {}\n",
                      task.preset.empty() ? fmt::format("seed {}", task.seed) : "preset " + task.preset,
                      task.bos < 0 ? "no BOS" : "one BOS", scoring_text(task.scoring));
  text += fmt::format("  {:>8}  {:>6}  {:>7}  {:>6}\n", "length", "depth", "correct", "trials");
  for (const RetrievalCell& cell : result.cells)
    text += fmt::format("  {:>8}  {:>6}  {:>7}  {:>6}\n", cell.length,
                        cell.depth < 0 ? "drawn" : fmt::format("{:.2f}", cell.depth), cell.correct, cell.trials);
  text += fmt::format("  accuracy {:.4f}  ({} of {})\n", result.accuracy(), result.correct(), result.prompts.size());
  return text;
}

}  // namespace capstan::framework
