#pragma once
// Tasks: examples that a program makes, for training and for exact-match evaluation. Example i of a task is a pure
// function of (settings, i). One file and one entry of task_registry.cpp per task.
//
// An example is drawn from a stream with the names of its task and its set in it, so that the sets of a task share no
// draws. Where a task has few examples at all (sums of one digit) two sets still hold the same one now and then.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "framework/token_file.h"
#include "framework/tokenizer.h"

namespace capstan::framework {

struct TaskExample {
  std::vector<std::int32_t> ids;        ///< as trained, with BOS where the tokenizer has one
  std::vector<std::uint8_t> loss_mask;  ///< [ids] 1: the answer, which is learned and scored
};

/// What a task may look at. Zero and empty stand for the task's own choice, which make_task fills in.
struct TaskSettings {
  std::string tokenizer;                   ///< as make_tokenizer takes it
  std::string set;                         ///< "train", "test", "sparse", …
  std::int64_t shortest = 0, longest = 0;  ///< lengths of examples, in the task's unit
  std::int64_t variables = 0;              ///< counting: variables that a program may use
  std::int64_t per_cell = 0;               ///< addition, set grid: examples of each pair of lengths
  std::string group;                       ///< word_problem: "s5", "a5", "z60"
  std::string answers;                     ///< word_problem: "last", "each"
  std::uint64_t seed = 1;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual TaskExample example(std::int64_t index) const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual std::int64_t examples() const { return 0; }    ///< that there are; 0: any number
  virtual bool ends_with_mark() const { return false; }  ///< the tokenizer's end id ends each example
};

/// An entry of the registry: a task, and all that its settings may be.
struct TaskEntry {
  std::string name, summary;
  std::string tokenizer;              ///< by default; a word list of the task's own goes with no other but "bytes"
  std::vector<std::string> sets;      ///< the first is the default
  std::string unit;                   ///< of lengths
  std::int64_t least = 0;             ///< shortest length that there is
  std::int64_t shortest, longest;     ///< by default
  std::int64_t context;               ///< tokens that hold every example of these lengths
  std::vector<std::string> settings;  ///< those it looks at among variables, per-cell, group, answers
  std::unique_ptr<Task> (*make)(const TaskSettings& settings);
  std::vector<std::string> cells = {};  ///< what the evaluation sorts by: "length_a", "length_b"
  /// The cell of an example by its text; absent if the text is none of the task's.
  std::optional<std::vector<std::int64_t>> (*cell)(const std::string& text) = nullptr;
};
const std::vector<TaskEntry>& tasks();
const TaskEntry* find_task(const std::string& name);  ///< null: none of that name

/// The settings with what the task chooses itself. Errors (usage): no such task, set or tokenizer, with the names;
/// lengths out of range; a setting that does not apply.
TaskSettings complete_settings(const std::string& name, const TaskSettings& settings);

/// With completed settings. Errors: those of complete_settings and make_tokenizer, and usage for settings that the task
/// refuses.
std::unique_ptr<Task> make_task(const std::string& name, const TaskSettings& settings);

std::unique_ptr<Task> make_addition_task(const TaskSettings& settings);
std::unique_ptr<Task> make_counting_task(const TaskSettings& settings);
std::unique_ptr<Task> make_flipflop_task(const TaskSettings& settings);
std::unique_ptr<Task> make_passkey_task(const TaskSettings& settings);
std::unique_ptr<Task> make_repeat_task(const TaskSettings& settings);
std::unique_ptr<Task> make_selective_copy_task(const TaskSettings& settings);
std::unique_ptr<Task> make_word_problem_task(const TaskSettings& settings);

/// Digits of both operands of "a+b=c".
std::optional<std::vector<std::int64_t>> addition_cell(const std::string& text);
/// Elements before "=" of "x1 … xn = y".
std::optional<std::vector<std::int64_t>> word_problem_cell(const std::string& text);

/// Examples [0, count) as documents of a token file, in order. No example crosses a multiple of `context` tokens, so
/// that a training window of that length holds whole examples: the rest of a window is filled with a document that does
/// not count, and one more such token ends the last window. `all`: every token of an example counts, not the answer
/// alone. Error (usage): an example longer than `context`.
std::vector<TokenDocument> pack_examples(const Task& task, std::int64_t count, std::int64_t context, bool all = false);

}  // namespace capstan::framework
