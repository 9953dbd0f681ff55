#include "framework/passkey.h"

#include <cmath>
#include <limits>

#include "framework/random.h"

namespace capstan::framework {

namespace {

/// The first n characters of the sentence repeated with single spaces.
std::string garbage_text(std::int64_t n) {
  static const std::string sentence =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
  std::string text;
  text.reserve(static_cast<std::size_t>(n));
  while (std::int64_t(text.size()) < n) text.append(sentence, 0, static_cast<std::size_t>(n) - text.size());
  return text;
}

PasskeyDraw draw_at(std::int64_t garbage, double depth, std::int32_t key) {
  return {garbage, std::llround(depth * double(garbage)), key};
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
  PasskeyPrompt made{prompt_of(tokenizer, bos, passkey_text(draw), draw.key), draw};
  made.depth = draw.garbage ? double(draw.prefix) / double(draw.garbage) : 0;
  return made;
}

PasskeyPrompt fitted_prompt(const Tokenizer& tokenizer, std::int32_t bos, std::int64_t length, double depth,
                            std::int32_t key) {
  const auto tokens = [&](std::int64_t garbage) {
    return prompt_tokens(tokenizer, bos, passkey_text(draw_at(garbage, depth, key)));
  };
  const std::int64_t least = tokens(0);
  if (least > length)
    fail(ExitCode::usage, "--lengths {}: the prompt without any garbage has {} tokens with {}; ask for more", length,
         least, tokenizer.name());
  const std::int64_t guess = 4 * (length - least) + 64;  // about four characters a token at most
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 4, dips = 16;
  const std::int64_t garbage = largest_fitting(tokens, length, guess, most, dips);
  return passkey_prompt(tokenizer, bos, draw_at(garbage, depth, key));
}

namespace {

RetrievalPlan longlora_plan(const Tokenizer& tokenizer, const PasskeyOptions& options) {
  RetrievalPlan plan;
  plan.trials = longlora_trials;
  plan.task.preset = "longlora";
  const std::vector<PasskeyDraw> draws = longlora_draws();
  for (std::int64_t i = 0; i < longlora_lengths; ++i) {
    const std::string text = passkey_text(draws[static_cast<std::size_t>(i * longlora_trials)]);
    plan.cells.push_back({prompt_tokens(tokenizer, options.bos, text), -1});
  }
  plan.prompt = [&tokenizer, draws, bos = options.bos](std::int64_t number) {
    return passkey_prompt(tokenizer, bos, draws[static_cast<std::size_t>(number)]);
  };
  return plan;
}

RetrievalPlan own_plan(const Tokenizer& tokenizer, const PasskeyOptions& options) {
  RetrievalPlan plan;
  plan.trials = options.trials;
  plan.cells = cells_of(options);
  plan.prompt = [&tokenizer, cells = plan.cells, options](std::int64_t number) {
    const std::int64_t cell = number / options.trials, depth = cell % options.depths, trial = number % options.trials;
    const RetrievalCell& asked = cells[static_cast<std::size_t>(cell)];
    const std::uint64_t stream = stream_of("passkey") ^ std::uint64_t(asked.length),
                        counter = std::uint64_t(depth) << 32 | std::uint64_t(trial);
    const std::int64_t key = 1 + random_below(options.seed, stream, counter, largest_key);
    return fitted_prompt(tokenizer, options.bos, asked.length, asked.depth, std::int32_t(key));
  };
  return plan;
}

}  // namespace

RetrievalPlan passkey_plan(const Tokenizer& tokenizer, const PasskeyOptions& options) {
  RetrievalPlan plan = options.longlora ? longlora_plan(tokenizer, options) : own_plan(tokenizer, options);
  plan.task.name = "passkey";
  plan.task.seed = options.seed;
  plan.task.bos = options.bos;
  plan.task.scoring = Scoring::exact;
  return plan;
}

}  // namespace capstan::framework
