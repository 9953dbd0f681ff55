#pragma once
// Exact match over token files of tasks (capstan task). An example is a document with at least one scored token: one that
// the file's loss mask counts, and that has a token before it. It is read whole, from its first token, alone, in one
// teacher-forced pass. It is right if at every scored position the greedy token (the likeliest, the lowest id among
// equals) is the one that stands there; which is so exactly if greedy decoding would write the whole answer.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "framework/model.h"
#include "framework/token_file.h"
#include "parallel/process_grid.h"

namespace capstan::framework {

/// A document and the positions in it that are scored.
struct ScoredDocument {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> positions;  ///< of the scored tokens, rising, from 1
};

/// What a model says of the scored tokens, in the order of their positions.
struct TaskAnswer {
  std::vector<std::int32_t> greedy;
  std::vector<double> nll;  ///< of the token that stands there, nat
};
/// Called by all ranks of a ring, which get the same.
using AnswerTask = std::function<TaskAnswer(const ScoredDocument& document)>;
AnswerTask model_task_answer(Model& model, parallel::Communicator& ring, std::int64_t tile);

struct TaskCounts {
  std::int64_t examples = 0, right = 0;
  std::int64_t tokens = 0, right_tokens = 0;  ///< scored ones
  double nll = 0;                             ///< sum over scored tokens, nat
  double accuracy() const { return examples ? double(right) / double(examples) : 0; }
  double token_accuracy() const { return tokens ? double(right_tokens) / double(tokens) : 0; }
  double mean_nll() const { return tokens ? nll / double(tokens) : 0; }
};

/// Examples of one sort: of addition, those with operands of two given lengths.
struct TaskCell {
  std::vector<std::int64_t> at;  ///< a value for each of cell_names
  std::int64_t examples = 0, right = 0;
};

/// One file: one set of a task.
struct TaskResult {
  std::string data, task, set, source;  ///< of the file; task and set are empty in files that do not say
  TaskCounts counts;
  bool complete = true;  ///< max_examples cut nothing off
  std::vector<std::string> cell_names;
  std::vector<TaskCell> cells;  ///< in order of `at`; empty if the task has none
};

/// Examples go over the data axis; sums run in the order of the examples, so that they do not depend on the ranks.
/// max_examples: only the first ones; 0: all. Errors (bad_data): a file without a loss mask, or without an example.
TaskResult evaluate_task(const parallel::ProcessGrid& grid, const TokenFile& data, std::int64_t max_examples,
                         const AnswerTask& answer);
/// With a model. Error (bad_data) besides: an id outside its vocabulary.
TaskResult evaluate_task(Model& model, const parallel::ProcessGrid& grid, const TokenFile& data,
                         std::int64_t max_examples, std::int64_t tile);

/// All files' results with what defines them; `model`: what the user named.
std::string task_json(const std::vector<TaskResult>& results, const std::string& model,
                      const parallel::ProcessGrid& grid);
/// The same as a table for a terminal.
std::string task_table(const std::vector<TaskResult>& results, const std::string& model);

}  // namespace capstan::framework
