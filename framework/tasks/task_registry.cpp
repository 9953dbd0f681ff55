#include "framework/tasks/task.h"

#include <algorithm>

#include "framework/files.h"
#include "kernels/check.h"

namespace capstan::framework {

const std::vector<TaskEntry>& tasks() {
  static const std::vector<TaskEntry> entries = {
      {"passkey", "a number hidden in a long, dull text (arXiv 2305.16300, §4.2); lengths in tokens",
       make_passkey_task},
      {"repeat", "random tokens, then the same again; lengths in tokens", make_repeat_task},
  };
  return entries;
}

std::unique_ptr<Task> make_task(const std::string& name, const TaskSettings& settings) {
  std::string names;
  for (const TaskEntry& entry : tasks()) {
    if (entry.name == name) return entry.make(settings);
    names += (names.empty() ? "" : ", ") + entry.name;
  }
  fail(ExitCode::usage, "{}: no such task; there are {}", printable(name), names);
}

namespace {

/// What fills a window: tokens that no one learns.
TokenDocument filler(const Tokenizer& tokenizer, std::int64_t tokens) {
  const std::vector<std::int32_t> end = tokenizer.end();
  const std::size_t size = std::size_t(tokens);
  return {std::vector<std::int32_t>(size, end.empty() ? 0 : end.front()), 0, std::vector<std::uint8_t>(size, 0)};
}

}  // namespace

std::vector<TokenDocument> pack_examples(const Task& task, std::int64_t count, std::int64_t context, bool all) {
  std::vector<TokenDocument> documents;
  std::int64_t room = context;  // of the window that is being filled
  for (std::int64_t i = 0; i < count; ++i) {
    TaskExample example = task.example(i);
    const std::int64_t tokens = std::ssize(example.ids);
    if (tokens > context)
      fail(ExitCode::usage, "--context {}: example {} has {} tokens; ask for a longer context or shorter examples",
           context, i, tokens);
    if (tokens > room) {
      documents.push_back(filler(task.tokenizer(), room));
      room = context;
    }
    if (all) std::fill(example.loss_mask.begin(), example.loss_mask.end(), std::uint8_t(1));
    documents.push_back({std::move(example.ids), 0, std::move(example.loss_mask)});
    room -= tokens;
    if (room == 0) room = context;
  }
  documents.push_back(filler(task.tokenizer(), (room == context ? 0 : room) + 1));
  return documents;
}

}  // namespace capstan::framework
