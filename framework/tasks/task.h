#pragma once
// Tasks: examples that a program makes, for training and for exact-match evaluation. Example i of a task is a pure
// function of (settings, i). One file and one line of task_registry.cpp per task.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/token_file.h"
#include "framework/tokenizer.h"

namespace capstan::framework {

struct TaskExample {
  std::vector<std::int32_t> ids;        ///< as trained, with BOS where the tokenizer has one
  std::vector<std::uint8_t> loss_mask;  ///< [ids] 1: the answer, which is learned and scored
};

/// What a task may look at; each says what it uses.
struct TaskSettings {
  std::string tokenizer;                   ///< as make_tokenizer takes it
  std::int64_t shortest = 0, longest = 0;  ///< lengths of examples, in the task's unit
  std::uint64_t seed = 1;
};

class Task {
 public:
  virtual ~Task() = default;
  virtual TaskExample example(std::int64_t index) const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
};

/// A line of the registry.
struct TaskEntry {
  std::string name, summary;
  std::unique_ptr<Task> (*make)(const TaskSettings& settings);
};
const std::vector<TaskEntry>& tasks();

/// Errors: usage (no such task, with the names; settings that the task refuses), and those of make_tokenizer.
std::unique_ptr<Task> make_task(const std::string& name, const TaskSettings& settings);

std::unique_ptr<Task> make_passkey_task(const TaskSettings& settings);
std::unique_ptr<Task> make_repeat_task(const TaskSettings& settings);

/// Examples [0, count) as documents of a token file, in order. No example crosses a multiple of `context` tokens, so
/// that a training window of that length holds whole examples: the rest of a window is filled with a document that does
/// not count, and one more such token ends the last window. `all`: every token of an example counts, not the answer
/// alone. Error (usage): an example longer than `context`.
std::vector<TokenDocument> pack_examples(const Task& task, std::int64_t count, std::int64_t context, bool all = false);

}  // namespace capstan::framework
