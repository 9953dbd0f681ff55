#pragma once
// Passkey retrieval: a number hidden in a long, dull text, to be repeated at its end (Mohtashami & Jaggi, arXiv
// 2305.16300, §4.2; the same text in LongLoRA and TAPE). Five lines: task, garbage, the key, garbage, question. Right
// only if the greedy tokens are the key's tokens, all of them. Prompts are token ids with exactly one BOS (none if the
// model has none).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/generator.h"
#include "framework/result_journal.h"
#include "framework/tokenizer.h"
#include "parallel/process_grid.h"

namespace capstan::framework {

constexpr std::int64_t largest_key = 50000;  ///< keys are 1 … 50000

/// What a prompt is made from: characters of garbage in all and before the key's line, and the key.
struct PasskeyDraw {
  std::int64_t garbage, prefix;
  std::int32_t key;
};

std::string passkey_text(const PasskeyDraw& draw);

/// LongLoRA's own 160 draws (passkey_longlora.cpp), length by length.
constexpr std::int64_t longlora_lengths = 8, longlora_trials = 20;
std::vector<PasskeyDraw> longlora_draws();

struct PasskeyOptions {
  bool longlora = false;              ///< the preset: lengths, depths and trials are its own
  std::vector<std::int64_t> lengths;  ///< prompt tokens with BOS and question
  std::int64_t depths = 1;            ///< evenly spaced, 0: key first … 1: key last; a single one is 0.5
  std::int64_t trials = 1;            ///< keys per length and depth
  std::uint64_t seed = 1;
  std::int32_t bos = -1;
  std::int64_t tile = 64;
};

struct PasskeyPrompt {
  PasskeyDraw draw;
  std::vector<std::int32_t> ids;       ///< with BOS
  std::vector<std::int32_t> expected;  ///< the key as it continues the prompt
};

/// The ids of a draw. The answer's tokens are those that " KEY" adds to the prompt's, by the tokenizer's own rule for
/// the space.
PasskeyPrompt passkey_prompt(const Tokenizer& tokenizer, std::int32_t bos, const PasskeyDraw& draw);
/// The most garbage whose prompt has at most `length` tokens, `depth` of it before the key. Error (usage): the text
/// without garbage is longer.
PasskeyPrompt fitted_prompt(const Tokenizer& tokenizer, std::int32_t bos, std::int64_t length, double depth,
                            std::int32_t key);

/// One answer: at most expected.size() ids are looked at. Called by all ranks of a ring.
using PasskeyAnswer = std::function<std::vector<std::int32_t>(const PasskeyPrompt& prompt)>;
/// Greedy decoding.
PasskeyAnswer model_answer(Model& model, parallel::Communicator& ring, std::int64_t tile);

struct PasskeyOutcome {
  std::int64_t cell;
  std::int64_t tokens;  ///< of the prompt, as it was
  double depth;         ///< share of the garbage before the key, as it was
  std::int32_t key;
  std::string tail;  ///< text of the prompt's last tokens
  std::vector<std::int32_t> expected, given;
  bool correct() const { return given == expected; }
};

struct PasskeyCell {
  std::int64_t length;  ///< asked for; preset: tokens of its first prompt
  double depth;         ///< asked for; preset: -1, drawn for each prompt
  std::int64_t correct = 0, trials = 0;
};

struct PasskeyResult {
  PasskeyOptions options;
  std::string tokenizer;
  std::vector<PasskeyCell> cells;
  std::vector<PasskeyOutcome> prompts;
  std::int64_t correct() const;
  double accuracy() const { return double(correct()) / double(prompts.size()); }
};

/// Prompts go over the data axis; the result is the same on every rank. The journal's items are the prompts.
PasskeyResult evaluate_passkey(const Tokenizer& tokenizer, const parallel::ProcessGrid& grid,
                               const PasskeyOptions& options, const PasskeyAnswer& answer, const Journal& journal = {});

std::string passkey_json(const PasskeyResult& result, const std::string& model, const parallel::ProcessGrid& grid);
std::string passkey_table(const PasskeyResult& result, const std::string& model);

}  // namespace capstan::framework
