#include "framework/tasks/task.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "framework/dataset.h"
#include "framework/passkey.h"
#include "tests/framework/test_folder.h"

namespace capstan::tests {
namespace {

using framework::make_task;
using framework::TaskExample;
using framework::TaskSettings;
using framework::TokenDocument;

const std::string pg19_tokenizer = capstan::testing::golden("tokenizers/pg19_bpe_8192.model");

TaskSettings settings(const std::string& tokenizer, std::int64_t shortest, std::int64_t longest) {
  TaskSettings out;
  out.tokenizer = tokenizer;
  out.shortest = shortest;
  out.longest = longest;
  return out;
}

std::vector<std::int32_t> answer_of(const TaskExample& example) {
  std::vector<std::int32_t> answer;
  for (std::size_t i = 0; i < example.ids.size(); ++i)
    if (example.loss_mask[i]) answer.push_back(example.ids[i]);
  return answer;
}

TEST(Tasks, ExamplesArePureFunctionsOfSeedAndIndex) {
  for (const framework::TaskEntry& entry : framework::tasks()) {
    SCOPED_TRACE(entry.name);
    TaskSettings asked = settings(entry.tokenizer == "bytes" ? pg19_tokenizer : "", 120, 300);
    const auto one = make_task(entry.name, asked), two = make_task(entry.name, asked);
    asked.seed = 2;
    const auto other = make_task(entry.name, asked);
    for (const std::int64_t index : {7, 0, 123456789}) {
      const TaskExample example = one->example(index);
      EXPECT_EQ(example.ids, two->example(index).ids);
      EXPECT_NE(example.ids, other->example(index).ids);
      EXPECT_NE(example.ids, one->example(index + 1).ids);
      ASSERT_EQ(example.loss_mask.size(), example.ids.size());
      EXPECT_FALSE(answer_of(example).empty());
      EXPECT_EQ(example.ids.front(), one->tokenizer().bos());
      EXPECT_FALSE(example.loss_mask.front());
    }
  }
}

TEST(Tasks, PasskeyExamplesAreTheEvaluationsPromptsWithTheirAnswers) {
  const auto task = make_task("passkey", settings(pg19_tokenizer, 100, 400));
  std::set<std::int64_t> lengths;
  std::set<std::string> answers;
  double shallow = 0, deep = 0;
  constexpr std::int64_t examples = 60;
  for (std::int64_t i = 0; i < examples; ++i) {
    const TaskExample example = task->example(i);
    const std::int64_t tokens = std::ssize(example.ids);
    EXPECT_GE(tokens, 90);  // a few characters of garbage cost no token, so an example may be shorter than it was drawn
    EXPECT_LE(tokens, 400);
    lengths.insert(tokens / 100);
    const std::string text = task->tokenizer().decode(example.ids), key = task->tokenizer().decode(answer_of(example));
    answers.insert(key);
    EXPECT_GE(std::stol(key), 1);
    EXPECT_LE(std::stol(key), framework::largest_key);
    const std::string needle = "\nThe pass key is " + key + ". Remember it. " + key + " is the pass key.\n",
                      question = "\nWhat is the pass key? The pass key is " + key;
    const std::size_t at = text.find(needle);
    ASSERT_NE(at, std::string::npos) << text;
    EXPECT_TRUE(text.ends_with(question)) << text;
    const std::size_t task_line = text.find('\n') + 1;
    const double garbage = double(text.size() - task_line - needle.size() - question.size());
    const double depth = garbage > 0 ? double(at - task_line) / garbage : 0;
    shallow += depth < 0.5;
    deep += depth >= 0.5;
  }
  EXPECT_EQ(lengths.size() + (lengths.count(0) ? 0 : 1), 4u) << "lengths over 100 … 400";
  EXPECT_GE(answers.size(), std::size_t(examples) - 2);
  EXPECT_GE(shallow, examples / 5);
  EXPECT_GE(deep, examples / 5);
}

TEST(Tasks, RepeatSaysEverythingTwice) {
  const auto task = make_task("repeat", settings("bytes", 4, 21));
  std::set<std::size_t> lengths;
  for (std::int64_t i = 0; i < 200; ++i) {
    const TaskExample example = task->example(i);
    const std::size_t half = (example.ids.size() - 1) / 2;
    lengths.insert(half);
    ASSERT_EQ(example.ids.size(), 2 * half + 1);
    const auto first = example.ids.begin() + 1, second = first + std::ptrdiff_t(half);
    EXPECT_TRUE(std::equal(first, second, second));
    EXPECT_EQ(answer_of(example), std::vector<std::int32_t>(second + 1, example.ids.end()));
  }
  EXPECT_EQ(lengths, (std::set<std::size_t>{2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST(Tasks, PackedExamplesStayWithinTheirWindow) {
  constexpr std::int64_t count = 100, context = 64;
  const auto task = make_task("repeat", settings("bytes", 4, 60));
  for (const bool all : {false, true}) {
    const std::vector<TokenDocument> documents = framework::pack_examples(*task, count, context, all);
    std::int64_t at = 0, example = 0;
    for (const TokenDocument& document : documents) {
      const std::int64_t tokens = std::ssize(document.ids), end = at + tokens - 1;
      const bool filler =
          std::none_of(document.loss_mask.begin(), document.loss_mask.end(), [](auto value) { return value != 0; });
      const bool last = &document == &documents.back();
      if (!last) { EXPECT_EQ(at / context, end / context) << "document at " << at; }
      if (!filler) {
        const TaskExample expected = task->example(example++);
        EXPECT_EQ(document.ids, expected.ids);
        EXPECT_EQ(document.loss_mask, all ? std::vector<std::uint8_t>(document.ids.size(), 1) : expected.loss_mask);
      }
      at += tokens;
    }
    EXPECT_EQ(example, count);
    EXPECT_EQ(at % context, 1) << "one token more, so that the last window is one";
  }
}

TEST(Tasks, APackedFileTrainsOnAnswersAlone) {
  const capstan::testing::TestFolder folder;
  constexpr std::int64_t context = 64;
  const auto task = make_task("repeat", settings("bytes", 4, 60));
  framework::TokenFileInfo info;
  info.vocabulary = task->tokenizer().vocabulary();
  info.tokenizer = "bytes";
  write_token_file(folder / "t.h5", framework::pack_examples(*task, 50, context), info);
  const framework::Dataset data({folder / "t.h5"}, {}, context, false, 1);
  std::int64_t answers = 0, counted = 0;
  for (std::int64_t i = 0; i < 50; ++i) answers += std::ssize(answer_of(task->example(i)));
  for (std::int64_t w = 0; w < data.windows(); ++w) {
    const auto layout = parallel::SequenceLayout::contiguous(context, 3, 16);
    std::int64_t here = 0;
    for (int rank = 0; rank < 3; ++rank) {
      const framework::Batch batch = data.read({data.window(w)}, layout, rank, kernels::Device::ref);
      const auto* targets = batch.targets.as<std::int32_t>();
      here += std::count_if(targets, targets + layout.local_tokens(rank), [](std::int32_t id) { return id >= 0; });
    }
    EXPECT_EQ(here, data.counted(data.window(w)));
    counted += here;
  }
  EXPECT_EQ(counted, answers);
}

TEST(Tasks, WhatCannotBeMadeIsRefusedWithItsNumbers) {
  using capstan::testing::error_of;
  using capstan::testing::expect_parts;
  expect_parts(error_of(ExitCode::usage, [] { make_task("passkeys", settings("bytes", 1, 1)); }),
               {"passkeys", "passkey", "repeat"});
  expect_parts(error_of(ExitCode::usage, [] { make_task("passkey", settings(pg19_tokenizer, 20, 100)); }),
               {"--shortest 20", "pg19_bpe_8192.model"});
  expect_parts(error_of(ExitCode::usage, [] { make_task("repeat", settings("bytes", 9, 8)); }),
               {"--shortest 9", "--longest 8"});
  const auto task = make_task("repeat", settings("bytes", 40, 60));
  expect_parts(error_of(ExitCode::usage, [&] { framework::pack_examples(*task, 50, 32); }), {"--context 32"});
}

}  // namespace
}  // namespace capstan::tests
