// Golden lines of tasks and what the generators make, held to the same rules (task_rules.h); and the distributions.

#include "tests/framework/task_rules.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <sstream>

#include "framework/json.h"
#include "framework/tasks/task.h"
#include "tests/framework/test_folder.h"

namespace capstan::tests {
namespace {

using capstan::testing::golden;
using framework::make_task;
using framework::make_tokenizer;
using framework::Task;
using framework::TaskExample;
using framework::TaskSettings;
using framework::Tokenizer;

constexpr std::int64_t examples = 200;  // of each set

std::vector<std::string> lines_of(const std::string& name) {
  std::istringstream text(capstan::testing::slurp(golden("tasks/" + name)));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

/// Fields of a line between tabs.
std::vector<std::string> fields_of(const std::string& line) {
  std::istringstream text(line);
  std::vector<std::string> fields;
  for (std::string field; std::getline(text, field, '\t');) fields.push_back(field);
  return fields;
}

/// Each id's own word.
Words words_of(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  Words words;
  for (const std::int32_t id : ids) words.push_back(tokenizer.decode({id}));
  return words;
}

/// A text read by the tokenizer, which must give it back.
Words read_back(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<std::int32_t> ids = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(ids), text);
  return words_of(tokenizer, ids);
}

/// An example without BOS, and without the end mark if there is one, whose mask goes with the rest's last.
struct Generated {
  Words words;
  Mask scored;
};
Generated generated(const Task& task, std::int64_t index) {
  TaskExample example = task.example(index);
  EXPECT_EQ(example.ids.front(), task.tokenizer().bos());
  EXPECT_FALSE(example.loss_mask.front());
  if (task.ends_with_mark()) {
    EXPECT_EQ(example.ids.back(), task.tokenizer().end().front());
    EXPECT_TRUE(example.loss_mask.back());
    example.ids.pop_back();
    example.loss_mask.pop_back();
  }
  const std::vector<std::int32_t> ids(example.ids.begin() + 1, example.ids.end());
  EXPECT_EQ(task.tokenizer().encode(task.tokenizer().decode(ids)), ids);
  return {words_of(task.tokenizer(), ids), {example.loss_mask.begin() + 1, example.loss_mask.end()}};
}

TaskSettings set_of(const std::string& set, std::int64_t shortest = 0, std::int64_t longest = 0) {
  TaskSettings settings;
  settings.set = set;
  settings.shortest = shortest;
  settings.longest = longest;
  return settings;
}

/// Successes of so many trials lie within four standard deviations of a share.
void expect_share(std::int64_t successes, std::int64_t trials, double share) {
  const double sigma = std::sqrt(double(trials) * share * (1 - share));
  EXPECT_NEAR(double(successes), double(trials) * share, 4 * sigma) << trials << " trials";
}

TEST(TaskRulesGolden, FlipflopLines) {
  const auto tokenizer = make_tokenizer("task:flipflop");
  std::vector<std::string> lines = lines_of("flipflop.tsv");
  lines.erase(lines.begin());
  ASSERT_EQ(lines.size(), 9u);
  for (const std::string& line : lines) {
    const FlipflopFacts facts = check_flipflop(read_back(*tokenizer, fields_of(line).at(2)));
    EXPECT_EQ(facts.pairs, 256);
    expect_share(facts.ignores, 254, std::stod(fields_of(line)[1]));
  }
}

TEST(TaskRulesGolden, SelectiveCopyLines) {
  const auto tokenizer = make_tokenizer("task:selective_copy");
  std::vector<std::string> lines = lines_of("selective_copy.tsv");
  lines.erase(lines.begin());
  ASSERT_EQ(lines.size(), 6u);
  for (const std::string& line : lines) {
    const std::vector<std::string> fields = fields_of(line);
    const CopyFacts facts = check_selective_copy(read_back(*tokenizer, fields.at(2) + "\t" + fields.at(3)));
    EXPECT_EQ(facts.kept, 256);
    EXPECT_EQ(facts.blanks, std::stol(fields[1]));
  }
}

TEST(TaskRulesGolden, CountingLines) {
  const auto tokenizer = make_tokenizer("task:counting");
  const std::vector<std::string> lines = lines_of("counting.jsonl");
  ASSERT_EQ(lines.size(), 8u);
  for (const std::string& line : lines) {
    const auto json = nlohmann::json::parse(line);
    const auto part = [&](const char* key) { return json.at(key).get<std::string>(); };
    const CountingFacts facts =
        check_counting(read_back(*tokenizer, part("context") + " " + part("question") + " " + part("answer")));
    EXPECT_GE(facts.steps, 3);
    EXPECT_LE(facts.steps, 512);
  }
}

TEST(TaskRulesGolden, AdditionLines) {
  const auto tokenizer = make_tokenizer("task:addition");
  const std::vector<std::string> lines = lines_of("addition_reversed.txt");
  ASSERT_EQ(lines.size(), 10u);
  for (const std::string& line : lines) check_addition(read_back(*tokenizer, line));
}

TEST(TaskRules, FlipflopSets) {
  const std::pair<const char*, double> sets[] = {{"train", 0.8}, {"test", 0.8}, {"sparse", 0.98}, {"dense", 0.1}};
  for (const auto& [set, ignore] : sets) {
    SCOPED_TRACE(set);
    const auto task = make_task("flipflop", set_of(set));
    FlipflopFacts sum;
    for (std::int64_t i = 0; i < examples; ++i) {
      const Generated made = generated(*task, i);
      const FlipflopFacts facts = check_flipflop(made.words);
      EXPECT_EQ(made.scored, facts.scored);
      EXPECT_EQ(facts.pairs, 256);
      sum.ignores += facts.ignores;
      sum.writes += facts.writes;
      sum.coins += facts.coins;
      sum.ones += facts.ones;
    }
    expect_share(sum.ignores, examples * 254, ignore);
    expect_share(sum.writes, examples * 254, (1 - ignore) / 2);
    expect_share(sum.ones, sum.coins, 0.5);
  }
}

TEST(TaskRules, SelectiveCopySets) {
  const std::pair<const char*, std::int64_t> sets[] = {{"train", 256}, {"test", 256}, {"sparse", 512}, {"dense", 128}};
  for (const auto& [set, blanks] : sets) {
    SCOPED_TRACE(set);
    const auto task = make_task("selective_copy", set_of(set));
    std::map<std::string, std::int64_t> symbols;
    std::int64_t begins_blank = 0;
    for (std::int64_t i = 0; i < examples; ++i) {
      const Generated made = generated(*task, i);
      const CopyFacts facts = check_selective_copy(made.words);
      EXPECT_EQ(made.scored, facts.scored);
      EXPECT_EQ(facts.kept, 256);
      EXPECT_EQ(facts.blanks, blanks);
      begins_blank += facts.begins_blank;
      for (const auto& [symbol, count] : facts.symbols) symbols[symbol] += count;
    }
    expect_share(begins_blank, examples, double(blanks) / double(256 + blanks));
    EXPECT_EQ(symbols.size(), 16u);
    for (const auto& [symbol, count] : symbols) expect_share(count, examples * 256, 1.0 / 16);
  }
}

TEST(TaskRules, CountingSets) {
  const std::pair<const char*, double> sets[] = {{"train", 50}, {"test", 50}, {"pass100", 100}, {"pass10", 10}};
  for (const auto& [set, pass] : sets)
    for (const std::int64_t variables : {1, 3, 5}) {
      SCOPED_TRACE(fmt::format("{} {}", set, variables));
      TaskSettings settings = set_of(set);
      settings.variables = variables;
      const auto task = make_task("counting", settings);
      double steps = 0;
      std::set<std::int64_t> answers;
      std::set<std::string> names;
      for (std::int64_t i = 0; i < examples; ++i) {
        const Generated made = generated(*task, i);
        const CountingFacts facts = check_counting(made.words);
        EXPECT_EQ(made.scored, facts.scored);
        EXPECT_GE(facts.steps, 3);
        EXPECT_LE(facts.steps, 512);
        steps += double(facts.steps);
        answers.insert(facts.answer);
        for (const auto& [name, value] : facts.values) names.insert(name);
      }
      // Evenly over 3 … 512: standard deviation 510 / √12.
      EXPECT_NEAR(steps / examples, 257.5, 4 * 510 / std::sqrt(12.0 * examples));
      EXPECT_GE(answers.size(), 8u);
      EXPECT_EQ(std::ssize(names), variables);
    }
}

TEST(TaskRules, CountingStepsHaveTheirWeights) {
  // Of long programs, almost none of which had to be drawn again.
  const std::pair<const char*, double> sets[] = {{"train", 50}, {"pass100", 100}, {"pass10", 10}};
  for (const auto& [set, pass] : sets) {
    SCOPED_TRACE(set);
    TaskSettings settings = set_of(set, 900, 1000);
    settings.variables = 5;
    const auto task = make_task("counting", settings);
    std::int64_t sets_made = 0, passes = 0, free_steps = 0, free_increments = 0;
    for (std::int64_t i = 0; i < 60; ++i) {
      const CountingFacts facts = check_counting(generated(*task, i).words);
      sets_made += facts.sets;
      free_steps += facts.free_steps;
      free_increments += facts.free_increments;
      passes += facts.passes;
    }
    expect_share(sets_made, sets_made + passes, 1 / (1 + pass));
    expect_share(free_increments, free_steps, 7 / (8 + pass));
  }
}

TEST(TaskRules, AdditionHasEveryPairOfLengthsEquallyOften) {
  for (const char* set : {"train", "test"}) {
    SCOPED_TRACE(set);
    const auto task = make_task("addition", set_of(set, 1, 7));
    EXPECT_EQ(task->examples(), 0);
    std::map<std::pair<std::size_t, std::size_t>, std::int64_t> pairs;
    std::vector<std::pair<std::size_t, std::size_t>> first, second;
    for (std::int64_t i = 0; i < 5 * 49; ++i) {
      const Generated made = generated(*task, i);
      const AdditionFacts facts = check_addition(made.words);
      EXPECT_EQ(made.scored, facts.scored);
      ++pairs[{facts.a.size(), facts.b.size()}];
      if (i < 98) (i < 49 ? first : second).emplace_back(facts.a.size(), facts.b.size());
    }
    EXPECT_EQ(pairs.size(), 49u);
    for (const auto& [pair, count] : pairs) EXPECT_EQ(count, 5) << pair.first << ", " << pair.second;
    EXPECT_NE(first, second) << "each pass in an order of its own";
  }
}

TEST(TaskRules, AdditionGridWalksItsCells) {
  TaskSettings settings = set_of("grid", 3, 12);
  settings.per_cell = 3;
  const auto task = make_task("addition", settings);
  ASSERT_EQ(task->examples(), 300);
  for (std::int64_t i = 0; i < 300; ++i) {
    const Generated made = generated(*task, i);
    const AdditionFacts facts = check_addition(made.words);
    EXPECT_EQ(made.scored, facts.scored);
    EXPECT_EQ(std::int64_t(facts.a.size()), 3 + i / 30);
    EXPECT_EQ(std::int64_t(facts.b.size()), 3 + i / 3 % 10);
  }
  settings.per_cell = 0;
  EXPECT_EQ(make_task("addition", settings)->examples(), 10000);
}

TEST(TaskRules, WordProblemsOfEveryGroup) {
  const std::pair<const char*, std::int64_t> groups[] = {{"s5", 120}, {"a5", 60}, {"z60", 60}};
  for (const auto& [group, size] : groups)
    for (const char* answers : {"last", "each"})
      for (const char* set : {"train", "test"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", group, answers, set));
        TaskSettings settings = set_of(set);
        settings.group = group;
        settings.answers = answers;
        const auto task = make_task("word_problem", settings);
        std::map<std::string, std::int64_t> elements;
        std::int64_t drawn = 0;
        for (std::int64_t i = 0; i < examples; ++i) {
          const Generated made = generated(*task, i);
          const GroupFacts facts = check_word_problem(made.words, std::string(group) == "z60", answers[0] == 'e');
          EXPECT_EQ(made.scored, facts.scored);
          EXPECT_GE(facts.length, 1);
          EXPECT_LE(facts.length, 32);
          drawn += facts.length;
          for (const auto& [element, count] : facts.elements) elements[element] += count;
        }
        EXPECT_NEAR(double(drawn) / examples, 16.5, 4 * 32 / std::sqrt(12.0 * examples));
        EXPECT_EQ(std::ssize(elements), size);
        double chi = 0;  // Pearson's statistic: mean size - 1, variance 2 (size - 1)
        for (const auto& [element, count] : elements)
          chi += std::pow(double(count) - double(drawn) / double(size), 2) / (double(drawn) / double(size));
        EXPECT_NEAR(chi, double(size - 1), 4 * std::sqrt(2.0 * double(size - 1)));
      }
}

TEST(TaskRules, SetsShareNoExamples) {
  for (const framework::TaskEntry& entry : framework::tasks()) {
    SCOPED_TRACE(entry.name);
    if (entry.tokenizer == "bytes") continue;
    std::set<std::vector<std::int32_t>> all;
    std::int64_t made = 0;
    for (const std::string& set : entry.sets) {
      const auto task = make_task(entry.name, set_of(set, 100, 120));
      for (std::int64_t i = 0; i < examples; ++i, ++made) all.insert(task->example(i).ids);
    }
    EXPECT_EQ(std::ssize(all), made);
  }
}

TEST(TaskRules, TasksCanBeWrittenInBytes) {
  for (const framework::TaskEntry& entry : framework::tasks()) {
    if (entry.tokenizer == "bytes") continue;
    SCOPED_TRACE(entry.name);
    TaskSettings settings = set_of("", 10, 12), bytes = settings;
    bytes.tokenizer = "bytes";
    const auto own = make_task(entry.name, settings), other = make_task(entry.name, bytes);
    for (std::int64_t i = 0; i < 20; ++i)
      EXPECT_EQ(own->tokenizer().decode(own->example(i).ids), other->tokenizer().decode(other->example(i).ids));
  }
}

TEST(TaskRules, CellsAreReadFromTexts) {
  using Cell = std::optional<std::vector<std::int64_t>>;
  EXPECT_EQ(framework::addition_cell("123+45=861"), Cell(std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(framework::addition_cell("123=45+861"), Cell());
  EXPECT_EQ(framework::word_problem_cell("12345 21345 = 21345"), Cell(std::vector<std::int64_t>{2}));
  EXPECT_EQ(framework::word_problem_cell("12345 21345"), Cell());
}

TEST(TaskRules, RefusalsNameWhatIsAllowed) {
  using capstan::testing::error_of;
  using capstan::testing::expect_parts;
  const auto refused = [](const std::string& task, const auto& change) {
    TaskSettings settings;
    change(settings);
    return error_of(ExitCode::usage, [&] { make_task(task, settings); });
  };
  expect_parts(refused("flipflop", [](auto& s) { s.set = "grid"; }), {"--set grid", "train, test, sparse, dense"});
  expect_parts(refused("flipflop", [](auto& s) { s.variables = 3; }), {"--variables 3", "flipflop"});
  expect_parts(refused("counting", [](auto& s) { s.variables = 4; }), {"--variables 4", "1, 3 or 5"});
  expect_parts(refused("counting", [](auto& s) { s.group = "s5"; }), {"--group s5", "variables"});
  expect_parts(refused("addition", [](auto& s) { s.per_cell = 4; }), {"--per-cell 4", "--set grid"});
  expect_parts(refused("word_problem", [](auto& s) { s.group = "s6"; }), {"--group s6", "s5, a5 and z60"});
  expect_parts(refused("word_problem", [](auto& s) { s.answers = "all"; }), {"--answers all", "last"});
  expect_parts(refused("addition", [](auto& s) { s.tokenizer = "x.model"; }), {"x.model", "task:addition and bytes"});
  expect_parts(refused("flipflop", [](auto& s) { s.shortest = 1; }), {"--shortest 1", "2 pairs"});
  expect_parts(refused("addition", [](auto& s) { s.shortest = 9, s.longest = 8; }), {"--shortest 9", "--longest 8"});
}

}  // namespace
}  // namespace capstan::tests
