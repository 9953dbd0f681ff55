#pragma once
// Retrieval from long prompts: something small is hidden in a long text and asked for at its end. A task (passkey.h, needle.h)
// makes a plan: cells of lengths and depths, how their prompts are made, and how an answer is judged. This is what all tasks
// share: asking, counting, and writing it down. Prompts are token ids with exactly one BOS (none if the model has none).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/generator.h"
#include "framework/result_journal.h"
#include "framework/tokenizer.h"
#include "parallel/process_grid.h"

namespace capstan::framework {

/// How an answer is judged; it is decoded greedily.
enum class Scoring : std::uint8_t {
  exact,     ///< its tokens are the expected ones, all of them
  contains,  ///< the text of at most `spare_tokens` more than the expected ones holds the expected number
};
constexpr std::int64_t spare_tokens = 8;

/// What every task may be asked.
struct RetrievalOptions {
  std::vector<std::int64_t> lengths;  ///< prompt tokens with BOS and question
  std::int64_t depths = 1;            ///< evenly spaced, 0: at the start … 1: at the end; a single one is 0.5
  std::int64_t trials = 1;            ///< prompts per length and depth
  std::uint64_t seed = 1;
  std::int32_t bos = -1;
  std::int64_t tile = 64;
};

struct RetrievalPrompt {
  std::vector<std::int32_t> ids;       ///< with BOS
  std::vector<std::int32_t> expected;  ///< the number as it continues the prompt
  std::int64_t number = 0;             ///< that is hidden
  std::string name;                    ///< by which it is asked for; empty where there is but one
  double depth = 0;                    ///< share of the text before it, as it was
};

/// Ids of a text, and those that " NUMBER" adds to them by the tokenizer's own rule for the space.
RetrievalPrompt prompt_of(const Tokenizer& tokenizer, std::int32_t bos, const std::string& text, std::int64_t number);

/// Tokens of a prompt, before it is made.
std::int64_t prompt_tokens(const Tokenizer& tokenizer, std::int32_t bos, const std::string& text);

/// The largest n in [0, most] with tokens(n) <= length. tokens(0) is, and tokens rises with n, but for dips: one more character
/// may join two tokens into one, so up to `dips` further ones are tried. `guess`: n that is probably too large.
std::int64_t largest_fitting(const std::function<std::int64_t(std::int64_t n)>& tokens, std::int64_t length,
                             std::int64_t guess, std::int64_t most, std::int64_t dips);

struct RetrievalCell {
  std::int64_t length;  ///< asked for; preset: tokens of its first prompt
  double depth;         ///< asked for; preset: -1, drawn for each prompt
  std::int64_t correct = 0, trials = 0;
};

/// One cell per length and depth, depths innermost.
std::vector<RetrievalCell> cells_of(const RetrievalOptions& options);

/// What defines a map beside its cells.
struct RetrievalTask {
  std::string name;    ///< "passkey", "ruler-single", "ruler-multikey"
  std::string preset;  ///< whose prompts these are; empty: they go by the seed
  std::uint64_t seed = 1;
  std::int32_t bos = -1;
  Scoring scoring = Scoring::exact;
  // Of needles alone:
  std::string haystack;       ///< "noise", or the file's path; empty: another task
  std::string haystack_hash;  ///< of the file; empty: noise
  std::int64_t keys = 0;      ///< needles in a prompt
};

/// Cells, and how prompt `number` is made: cell by cell, trials innermost.
struct RetrievalPlan {
  RetrievalTask task;
  std::vector<RetrievalCell> cells;
  std::int64_t trials = 1;
  std::function<RetrievalPrompt(std::int64_t number)> prompt;
  std::int64_t prompts() const { return std::int64_t(cells.size()) * trials; }
};

/// The greedy continuation of a prompt, at most `tokens` long. Called by all ranks of a ring.
using RetrievalAnswer = std::function<std::vector<std::int32_t>(const RetrievalPrompt& prompt, std::int64_t tokens)>;
RetrievalAnswer model_answer(Model& model, parallel::Communicator& ring, std::int64_t tile);

struct RetrievalOutcome {
  std::int64_t cell = 0;
  std::int64_t tokens = 0;  ///< of the prompt, as it was
  double depth = 0;         ///< as it was
  std::int64_t number = 0;
  std::string name;
  std::string tail;  ///< text of the prompt's last tokens
  std::vector<std::int32_t> expected, given;
  std::string given_text;
  bool correct = false;
};

struct RetrievalResult {
  RetrievalTask task;
  std::string tokenizer;
  std::vector<RetrievalCell> cells;
  std::vector<RetrievalOutcome> prompts;
  std::int64_t correct() const;
  double accuracy() const { return double(correct()) / double(prompts.size()); }
};

/// Prompts go over the data axis; the result is the same on every rank. The journal's items are the prompts.
RetrievalResult evaluate_retrieval(const Tokenizer& tokenizer, const parallel::ProcessGrid& grid,
                                   const RetrievalPlan& plan, const RetrievalAnswer& answer,
                                   const Journal& journal = {});

std::string retrieval_json(const RetrievalResult& result, const std::string& model, const parallel::ProcessGrid& grid);
std::string retrieval_table(const RetrievalResult& result, const std::string& model);

}  // namespace capstan::framework
