#include "framework/task_evaluation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/generator.h"
#include "framework/json.h"
#include "framework/tasks/task.h"
#include "tests/framework/small_model.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;
using capstan::testing::TestFolder;
using tests::small_model;

/// A file of examples, as `capstan task` writes it.
TokenFile task_file(const TestFolder& folder, const std::string& name, const TaskSettings& settings, std::int64_t count,
                    std::int64_t context = 128) {
  const auto task = make_task(name, settings);
  TokenFileInfo info;
  info.vocabulary = task->tokenizer().vocabulary();
  info.bos = task->tokenizer().bos();
  info.tokenizer = task->tokenizer().name();
  info.tokenizer_hash = task->tokenizer().hash();
  info.task = name;
  info.set = complete_settings(name, settings).set;
  info.source = "test";
  write_token_file(folder / (name + ".h5"), pack_examples(*task, count, context), info);
  return TokenFile::open(folder / (name + ".h5"));
}

TaskSettings lengths(std::int64_t shortest, std::int64_t longest) {
  TaskSettings settings;
  settings.shortest = shortest;
  settings.longest = longest;
  return settings;
}

/// The right tokens, or at `wrong` of them the next id.
TaskAnswer told(const ScoredDocument& document, const std::vector<std::size_t>& wrong = {}) {
  TaskAnswer answer;
  for (const std::int64_t at : document.positions) answer.greedy.push_back(document.ids[std::size_t(at)]);
  for (const std::size_t which : wrong) ++answer.greedy.at(which);
  answer.nll.assign(answer.greedy.size(), 0.5);
  return answer;
}

TEST(TaskEvaluation, CountsWhatTheAnswersSay) {
  const TestFolder folder;
  const TokenFile data = task_file(folder, "addition", lengths(1, 9), 81);
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const TaskResult all = evaluate_task(grid, data, 0, [](const ScoredDocument& d) { return told(d); });
  EXPECT_EQ(all.counts.examples, 81);
  EXPECT_EQ(all.counts.right, 81);
  EXPECT_EQ(all.counts.right_tokens, all.counts.tokens);
  EXPECT_DOUBLE_EQ(all.counts.mean_nll(), 0.5);
  EXPECT_EQ(all.task, "addition");
  EXPECT_EQ(all.set, "train");

  // One token wrong is the example wrong: the last one here, the end mark.
  const TaskResult none =
      evaluate_task(grid, data, 0, [](const ScoredDocument& d) { return told(d, {d.positions.size() - 1}); });
  EXPECT_EQ(none.counts.right, 0);
  EXPECT_EQ(none.counts.right_tokens, all.counts.tokens - 81);

  int number = 0;
  const TaskResult third =
      evaluate_task(grid, data, 60, [&](const ScoredDocument& d) { return number++ % 3 ? told(d, {0}) : told(d); });
  EXPECT_EQ(third.counts.examples, 60);
  EXPECT_EQ(third.counts.right, 20);
  EXPECT_FALSE(third.complete);
}

TEST(TaskEvaluation, ScoredTokensAreTheMasks) {
  const TestFolder folder;
  const TokenFile data = task_file(folder, "flipflop", lengths(8, 20), 30);
  const auto task = make_task("flipflop", lengths(8, 20));
  const auto self = parallel::make_self_communicator();
  std::int64_t number = 0;
  evaluate_task(parallel::make_process_grid(*self, 1), data, 0, [&](const ScoredDocument& document) {
    const TaskExample example = task->example(number++);
    EXPECT_EQ(document.ids, example.ids);
    std::vector<std::int64_t> positions;
    for (std::size_t at = 0; at < example.ids.size(); ++at)
      if (example.loss_mask[at]) positions.push_back(std::int64_t(at));
    EXPECT_EQ(document.positions, positions);
    return told(document);
  });
  EXPECT_EQ(number, 30);
}

TEST(TaskEvaluation, IsTheSameOnEveryGrid) {
  const TestFolder folder;
  const auto self = parallel::make_self_communicator();
  std::int64_t right_tokens = 0;  // of all models together: one alone may always guess another
  const std::pair<const char*, TaskSettings> sets[] = {{"flipflop", lengths(4, 40)}, {"addition", lengths(1, 6)}};
  for (const auto& [name, settings] : sets) {
    const TokenFile data = task_file(folder, name, settings, 24);
    for (const char* kind : {"none", "rope+cope", "tape"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, kind));
      const auto make_model = [&] { return small_model({kind, DType::f64, Device::ref, data.info().vocabulary}); };
      const TaskResult alone = evaluate_task(*make_model(), parallel::make_process_grid(*self, 1), data, 0, 8);
      right_tokens += alone.counts.right_tokens;
      EXPECT_LT(alone.counts.right_tokens, alone.counts.tokens);
      tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
        const auto model = make_model();
        for (int ring = 1; ring <= world.size(); ++ring) {
          if (world.size() % ring != 0) continue;
          const TaskResult got = evaluate_task(*model, parallel::make_process_grid(world, ring), data, 0, 8);
          EXPECT_EQ(got.counts.examples, alone.counts.examples);
          EXPECT_EQ(got.counts.right, alone.counts.right) << "ring " << ring;
          EXPECT_EQ(got.counts.tokens, alone.counts.tokens);
          EXPECT_EQ(got.counts.right_tokens, alone.counts.right_tokens) << "ring " << ring;
          EXPECT_NEAR(got.counts.nll, alone.counts.nll, 1e-12 * alone.counts.nll);
          EXPECT_EQ(got.cells.size(), alone.cells.size());
        }
      });
    }
  }
  EXPECT_GT(right_tokens, 0);
}

TEST(TaskEvaluation, IsGreedyDecoding) {
  // Documents whose answers the model itself has written, token by token: all right, and none once a token is another.
  const TestFolder folder;
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  for (const char* kind : {"rope", "cope", "tape"}) {
    SCOPED_TRACE(kind);
    const auto model = small_model({kind});
    const std::int32_t vocabulary = std::int32_t(model->config().vocabulary);
    std::vector<TokenDocument> right, wrong;
    for (std::uint64_t i = 0; i < 10; ++i) {
      const std::int64_t prompt = 1 + std::int64_t(i), answer = 1 + std::int64_t(i % 4);
      const Tensor drawn = tests::random_ids({prompt}, Device::ref, 50 + i, 0, vocabulary);
      std::vector<std::int32_t> ids(drawn.as<std::int32_t>(), drawn.as<std::int32_t>() + prompt);
      Generator generator(*model, *self, 8);
      for (const std::int32_t id : generate_tokens(generator, ids, answer, {}, {}).ids) ids.push_back(id);
      std::vector<std::uint8_t> mask(ids.size(), 0);
      std::fill(mask.begin() + prompt, mask.end(), std::uint8_t(1));
      right.push_back({ids, 0, mask});
      ids.back() = (ids.back() + 1) % vocabulary;
      wrong.push_back({ids, 0, mask});
    }
    TokenFileInfo info;
    info.vocabulary = vocabulary;
    write_token_file(folder / "right.h5", right, info);
    write_token_file(folder / "wrong.h5", wrong, info);
    const TaskResult all = evaluate_task(*model, grid, TokenFile::open(folder / "right.h5"), 0, 8);
    EXPECT_EQ(all.counts.examples, 10);
    EXPECT_EQ(all.counts.right, 10);
    EXPECT_TRUE(all.cells.empty());
    EXPECT_EQ(evaluate_task(*model, grid, TokenFile::open(folder / "wrong.h5"), 0, 8).counts.right, 0);
  }
}

TEST(TaskEvaluation, UniformModelKnowsNothing) {
  const TestFolder folder;
  const TokenFile data = task_file(folder, "counting", lengths(3, 30), 20);
  const auto self = parallel::make_self_communicator();
  const auto model = small_model({"rope", DType::f64, Device::ref, 37, 0});
  const TaskResult result = evaluate_task(*model, parallel::make_process_grid(*self, 1), data, 0, 16);
  EXPECT_EQ(result.counts.right, 0) << "of equals the lowest id, BOS, is no answer";
  EXPECT_EQ(result.counts.tokens, 20);
  EXPECT_NEAR(result.counts.mean_nll(), std::log(37.0), 1e-12);
}

TEST(TaskEvaluation, SortsAdditionByLengths) {
  const TestFolder folder;
  TaskSettings settings = lengths(2, 13);
  settings.set = "grid";
  settings.per_cell = 2;
  const TokenFile data = task_file(folder, "addition", settings, 288);
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const auto tokenizer = make_tokenizer("task:addition");
  const TaskResult result = evaluate_task(grid, data, 0, [&](const ScoredDocument& document) {
    return tokenizer->decode(document.ids).find('+') <= 4 ? told(document) : told(document, {0});
  });
  EXPECT_EQ(result.cell_names, (std::vector<std::string>{"length_a", "length_b"}));
  ASSERT_EQ(result.cells.size(), 144u);
  for (const TaskCell& cell : result.cells) {
    EXPECT_EQ(cell.examples, 2);
    EXPECT_EQ(cell.right, cell.at[0] <= 4 ? 2 : 0) << cell.at[0] << ", " << cell.at[1];
  }
  const auto json = nlohmann::json::parse(task_json({result}, "folder", grid));
  const auto& set = json.at("sets").at(0);
  EXPECT_EQ(set.at("set"), "grid");
  EXPECT_EQ(set.at("cells").size(), 144u);
  EXPECT_EQ(set.at("cells").at(13),
            nlohmann::json::parse(R"({"length_a": 3, "length_b": 3, "examples": 2, "right": 2, "accuracy": 1.0})"));
  EXPECT_EQ(json.at("kind"), "task");
  // Twelve lengths in six groups of two; half of the second group of length_a is 4.
  expect_parts(task_table({result}, "folder"),
               {"addition, grid", "length_a (down) and length_b (across)", "2-3", "12-13", "100.0", "50.0", "25.00 "});
}

TEST(TaskEvaluation, WordProblemsByLength) {
  const TestFolder folder;
  const TokenFile data = task_file(folder, "word_problem", lengths(3, 5), 40);
  const auto self = parallel::make_self_communicator();
  const TaskResult result = evaluate_task(parallel::make_process_grid(*self, 1), data, 0,
                                          [&](const ScoredDocument& document) { return told(document); });
  ASSERT_EQ(result.cells.size(), 3u);
  EXPECT_EQ(result.cells[0].at, std::vector<std::int64_t>{3});
  expect_parts(task_table({result}, "folder"), {"by length\n", "word_problem, train", "100.0"});
}

TEST(TaskEvaluation, RefusesWhatHoldsNoExample) {
  const TestFolder folder;
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const auto model = small_model({"rope"});
  TokenFileInfo info;
  info.vocabulary = 40;
  const auto line = [&](const std::vector<TokenDocument>& documents) {
    write_token_file(folder / "data.h5", documents, info);
    const TokenFile data = TokenFile::open(folder / "data.h5");
    return error_of(ExitCode::bad_data, [&] { evaluate_task(*model, grid, data, 0, 16); });
  };
  expect_parts(line({{{1, 2, 3}, 0, {}}}), {"data.h5", "no loss mask", "capstan task"});
  expect_parts(line({{{1, 2, 3}, 0, {1, 0, 0}}}), {"data.h5", "none of its 1 documents"});
  expect_parts(line({{{1, 2, 39}, 0, {0, 0, 1}}}), {"id 39", "0 to 36"});
}

}  // namespace
}  // namespace capstan::framework
