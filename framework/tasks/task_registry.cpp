#include "framework/tasks/task.h"

#include <algorithm>

#include "framework/files.h"
#include "kernels/check.h"

namespace capstan::framework {

const std::vector<TaskEntry>& tasks() {
  static const std::vector<TaskEntry> entries = {
      {"passkey",
       "a number hidden in a long, dull text (arXiv 2305.16300)",
       "bytes",
       {"train"},
       "tokens",
       1,
       256,
       512,
       512,
       {},
       make_passkey_task},
      {"repeat",
       "random tokens, then the same again",
       "bytes",
       {"train"},
       "tokens",
       4,
       128,
       512,
       512,
       {},
       make_repeat_task},
      {"flipflop",
       "a memory of one bit, written, ignored and read (arXiv 2306.00946)",
       "task:flipflop",
       {"train", "test", "sparse", "dense"},
       "pairs",
       2,
       256,
       256,
       513,
       {},
       make_flipflop_task},
      {"selective_copy",
       "tokens among blanks, then without them (arXiv 2405.18719)",
       "task:selective_copy",
       {"train", "test", "sparse", "dense"},
       "tokens to copy",
       1,
       256,
       256,
       1026,
       {},
       make_selective_copy_task},
      {"counting",
       "a program that counts, and a variable's value (arXiv 2405.18719)",
       "task:counting",
       {"train", "test", "pass100", "pass10"},
       "steps",
       1,
       3,
       512,
       1024,
       {"variables"},
       make_counting_task},
      {"addition",
       "a+b=c, least digit first (arXiv 2405.17399)",
       "task:addition",
       {"train", "test", "grid"},
       "digits",
       1,
       1,
       20,
       512,
       {"per-cell"},
       make_addition_task,
       {"length_a", "length_b"},
       addition_cell},
      {"word_problem",
       "products in a group (arXiv 2404.08819)",
       "task:word_problem",
       {"train", "test"},
       "elements",
       1,
       1,
       32,
       512,
       {"group", "answers"},
       make_word_problem_task,
       {"length"},
       word_problem_cell},
  };
  return entries;
}

const TaskEntry* find_task(const std::string& name) {
  for (const TaskEntry& entry : tasks())
    if (entry.name == name) return &entry;
  return nullptr;
}

namespace {

const TaskEntry& task_of(const std::string& name) {
  const TaskEntry* entry = find_task(name);
  std::vector<std::string> names;
  for (const TaskEntry& each : tasks()) names.push_back(each.name);
  if (!entry) fail(ExitCode::usage, "{}: no such task; there are {}", printable(name), fmt::join(names, ", "));
  return *entry;
}

bool holds(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

/// Refuses settings that this task would not look at.
void check_settings(const TaskEntry& task, const TaskSettings& given) {
  const std::pair<const char*, std::string> all[] = {
      {"variables", given.variables ? std::to_string(given.variables) : ""},
      {"per-cell", given.per_cell ? std::to_string(given.per_cell) : ""},
      {"group", given.group},
      {"answers", given.answers}};
  for (const auto& [name, value] : all)
    if (!value.empty() && !holds(task.settings, name))
      fail(ExitCode::usage, "--{} {}: {} has no such setting; its own are {}", name, printable(value), task.name,
           task.settings.empty() ? "none but set and lengths" : fmt::format("{}", fmt::join(task.settings, ", ")));
}

}  // namespace

TaskSettings complete_settings(const std::string& name, const TaskSettings& settings) {
  const TaskEntry& task = task_of(name);
  check_settings(task, settings);
  TaskSettings full = settings;
  if (full.set.empty()) full.set = task.sets.front();
  if (!holds(task.sets, full.set))
    fail(ExitCode::usage, "--set {}: {} has the sets {}", printable(full.set), name, fmt::join(task.sets, ", "));
  if (full.tokenizer.empty()) full.tokenizer = task.tokenizer;
  if (task.tokenizer != "bytes" && full.tokenizer != task.tokenizer && full.tokenizer != "bytes")
    fail(ExitCode::usage, "--tokenizer {}: {} is written in words of its own; allowed are {} and bytes",
         printable(full.tokenizer), name, task.tokenizer);
  if (full.shortest == 0) full.shortest = std::min(task.shortest, full.longest ? full.longest : task.shortest);
  if (full.longest == 0) full.longest = std::max(task.longest, full.shortest);
  if (full.shortest < task.least || full.longest < full.shortest)
    fail(ExitCode::usage,
         "--shortest {} --longest {}: an example of {} has at least {} {}, and --longest is not below --shortest",
         full.shortest, full.longest, name, task.least, task.unit);
  if (full.variables == 0 && holds(task.settings, "variables")) full.variables = 1;
  return full;
}

std::unique_ptr<Task> make_task(const std::string& name, const TaskSettings& settings) {
  return task_of(name).make(complete_settings(name, settings));
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
