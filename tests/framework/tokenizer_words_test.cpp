// Word lists of tasks as tokenizers: stable, and as good as files wherever a tokenizer is named.

#include <gtest/gtest.h>

#include "framework/tokenizer.h"
#include "framework/training_data.h"
#include "tests/framework/checkpoint_training.h"
#include "tests/framework/test_folder.h"

namespace capstan::framework {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;
using Ids = std::vector<std::int32_t>;

TEST(WordTokenizer, ListsNeverChange) {
  // Models and token files hold these hashes. Another list is another tokenizer, under another name.
  struct Known {
    const char *name, *hash;
    std::int64_t vocabulary;
  };
  const Known all[] = {{"task:flipflop", "dc3d958caaa59bdb", 7},
                       {"task:selective_copy", "3bf5b293af45e511", 20},
                       {"task:counting", "61540a37c1be3d8f", 23},
                       {"task:addition", "d219fd9145f6fba1", 14},
                       {"task:word_problem", "2dd8d8427fd48ea1", 183}};
  for (const Known& known : all) {
    const auto tokenizer = make_tokenizer(known.name);
    EXPECT_EQ(tokenizer->name(), known.name);
    EXPECT_EQ(tokenizer->hash(), known.hash) << known.name;
    EXPECT_EQ(tokenizer->vocabulary(), known.vocabulary);
    EXPECT_EQ(tokenizer->bos(), 0);
    EXPECT_EQ(tokenizer->end(), Ids{1});
    EXPECT_TRUE(is_builtin_tokenizer(known.name));
    EXPECT_EQ(tokenizer_file(known.name).name, known.name);
    EXPECT_EQ(tokenizer_file(known.name).bytes, "");
  }
  EXPECT_EQ(builtin_tokenizers().size(), 1 + std::size(all));
}

TEST(WordTokenizer, EveryWordIsReadBack) {
  for (const std::string& name : builtin_tokenizers()) {
    if (name == "bytes") continue;
    const auto tokenizer = make_tokenizer(name);
    Ids ids;
    for (std::int32_t id = 2; id < tokenizer->vocabulary(); ++id) {
      EXPECT_EQ(tokenizer->encode(tokenizer->decode({id})), Ids{id}) << name;
      ids.push_back(id);
    }
    EXPECT_EQ(tokenizer->encode(tokenizer->decode(ids)), ids) << name;
    EXPECT_EQ(tokenizer->decode({0, 1}), "") << name;
    expect_parts(error_of(ExitCode::bad_data, [&] { tokenizer->decode({std::int32_t(tokenizer->vocabulary())}); }),
                 {name, "outside"});
  }
}

TEST(WordTokenizer, ReadsTexts) {
  EXPECT_EQ(make_tokenizer("task:flipflop")->encode("w0i1r"), (Ids{2, 5, 4, 6, 3}));
  const auto counting = make_tokenizer("task:counting");
  EXPECT_EQ(counting->decode(counting->encode("  pass;\n a =  0 ; print a 10 ")), "pass; a = 0 ; print a 10");
  EXPECT_TRUE(counting->encode(" ").empty());
  expect_parts(error_of(ExitCode::bad_data, [&] { counting->encode("pass; f = 0 ;"); }), {"task:counting", "'f'", "6"});
  EXPECT_EQ(make_tokenizer("task:flipflop", {0})->end(), Ids{0});
  expect_parts(error_of(ExitCode::config, [] { make_tokenizer("task:flipflop", {7}); }), {"task:flipflop", "0 to 6"});
  expect_parts(error_of(ExitCode::io, [] { make_tokenizer("task:flip"); }), {"task:flip", "task:flipflop", "bytes"});
}

TEST(WordTokenizer, FoldersAndCheckpointsNameIt) {
  const capstan::testing::TestFolder folder;
  folder.write("hf/tokenizer", "task:addition\n");
  EXPECT_EQ(make_tokenizer(folder / "hf")->name(), "task:addition");

  tests::Training training;
  training.header.tokenizer = "task:addition";
  training.extras = {};
  const std::string saved = training.save_alone(folder / "run");
  const LoadedModel loaded = load_model(saved, Device::ref, DType::f32);
  ASSERT_TRUE(loaded.tokenizer);
  EXPECT_EQ(loaded.tokenizer->hash(), make_tokenizer("task:addition")->hash());
}

TEST(WordTokenizer, RunsCarryIt) {
  const capstan::testing::TestFolder folder;
  const auto tokenizer = make_tokenizer("task:addition");
  TokenFileInfo info;
  info.vocabulary = tokenizer->vocabulary();
  info.bos = tokenizer->bos();
  info.end = tokenizer->end();
  info.tokenizer = tokenizer->name();
  info.tokenizer_hash = tokenizer->hash();
  info.task = "addition";
  info.set = "grid";
  write_token_file(folder / "a.h5", {{Ids(100, 5), 0, {}}}, info);
  EXPECT_EQ(TokenFile::open(folder / "a.h5").info().task, "addition");
  EXPECT_EQ(TokenFile::open(folder / "a.h5").info().set, "grid");
  Recipe recipe;
  recipe.data.train = folder / "a.h5";
  recipe.data.context = 16;
  recipe.train.sequences = 1;
  for (const char* named : {"", "task:addition"}) {
    recipe.data.tokenizer = named;
    const TrainingData data = open_training_data(recipe);
    const TextConventions text = text_conventions(recipe, data, nullptr);
    EXPECT_EQ(text.tokenizer, "task:addition");
    EXPECT_EQ(text.tokenizer_model, "");
    EXPECT_EQ(text.bos, 0);
    EXPECT_EQ(text.end_tokens, Ids{1});
  }
  recipe.data.tokenizer = "task:flipflop";
  const TrainingData data = open_training_data(recipe);
  expect_parts(error_of(ExitCode::bad_data, [&] { text_conventions(recipe, data, nullptr); }),
               {"task:addition", "task:flipflop"});
}

}  // namespace
}  // namespace capstan::framework
