#include "framework/passkey.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "framework/files.h"
#include "framework/json.h"
#include "tests/framework/small_model.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"
#include "tests/support/sha256.h"

namespace capstan::framework {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;

RetrievalAnswer copying() {
  return [](const RetrievalPrompt& prompt, std::int64_t) { return prompt.expected; };
}
RetrievalAnswer constant() {
  return [](const RetrievalPrompt&, std::int64_t tokens) {
    return std::vector<std::int32_t>(static_cast<std::size_t>(tokens), 42);
  };
}

RetrievalResult evaluate_passkey(const Tokenizer& tokenizer, const parallel::ProcessGrid& grid,
                                 const PasskeyOptions& options, const RetrievalAnswer& answer,
                                 const Journal& journal = {}) {
  return evaluate_retrieval(tokenizer, grid, passkey_plan(tokenizer, options), answer, journal);
}

PasskeyOptions byte_options() {
  PasskeyOptions options;
  options.lengths = {400, 1000};
  options.depths = 3;
  options.trials = 2;
  options.bos = 256;
  return options;
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(tests::sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(tests::sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Passkey, TextEqualsLongLorasPromptForAll160Draws) {
  std::istringstream table(capstan::testing::slurp(capstan::testing::golden("passkey/passkey.tsv")));
  std::string line;
  std::getline(table, line);
  const std::vector<PasskeyDraw> draws = longlora_draws();
  std::size_t number = 0;
  for (std::int64_t interval, garbage, seed, prefix, key, characters, tokens; std::getline(table, line); ++number) {
    std::string hash;
    std::istringstream(line) >> interval >> garbage >> seed >> prefix >> key >> characters >> tokens >> hash;
    ASSERT_LT(number, draws.size());
    EXPECT_EQ(draws[number].garbage, garbage);
    EXPECT_EQ(draws[number].prefix, prefix);
    EXPECT_EQ(draws[number].key, key);
    const std::string text = passkey_text(draws[number]);
    EXPECT_EQ(std::int64_t(text.size()), characters);
    EXPECT_EQ(tests::sha256(text), hash) << "draw " << number;
  }
  EXPECT_EQ(number, draws.size());
}

TEST(Passkey, PromptHasOneBosAndTheAnswerContinuesIt) {
  const auto bytes = make_tokenizer("bytes");
  const PasskeyPrompt prompt = passkey_prompt(*bytes, 256, {500, 100, 1234});
  EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), 256), 1);
  EXPECT_EQ(prompt.ids.front(), 256);
  EXPECT_EQ(prompt.expected, (std::vector<std::int32_t>{' ', '1', '2', '3', '4'}));
  EXPECT_EQ(bytes->decode(prompt.ids), passkey_text({500, 100, 1234}));
}

TEST(Passkey, PromptIsAsLongAsItCanBe) {
  const auto bytes = make_tokenizer("bytes");
  for (const std::int64_t length : {400, 401, 1000, 5000})
    for (const double depth : {0.0, 0.3, 1.0}) {
      const PasskeyPrompt prompt = fitted_prompt(*bytes, 256, length, depth, 777);
      EXPECT_EQ(std::int64_t(prompt.ids.size()), length);
      EXPECT_NEAR(double(prompt.draw.prefix), depth * double(prompt.draw.garbage), 0.5);
    }
  const std::string line = error_of(ExitCode::usage, [&] { fitted_prompt(*bytes, 256, 100, 0.5, 777); });
  expect_parts(line, {"--lengths 100", "bytes"});
}

TEST(Passkey, SentencePiecePromptsNeverExceedTheLength) {
  const auto tokenizer = make_tokenizer(capstan::testing::golden("tokenizers/tok512.model"));
  for (const std::int64_t length : {512, 1000}) {
    const PasskeyPrompt prompt = fitted_prompt(*tokenizer, 1, length, 0.5, 49674);
    EXPECT_LE(std::int64_t(prompt.ids.size()), length);
    EXPECT_GE(std::int64_t(prompt.ids.size()), length - 2);
    EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), 1), 1);
    std::vector<std::int32_t> whole = prompt.ids;
    whole.insert(whole.end(), prompt.expected.begin(), prompt.expected.end());
    EXPECT_EQ(tokenizer->decode(whole), passkey_text(prompt.draw) + " 49674");
  }
}

TEST(Passkey, OraclesScoreAllAndNothing) {
  const auto bytes = make_tokenizer("bytes");
  tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
    for (int ring = 1; ring <= world.size(); ++ring) {
      if (world.size() % ring != 0) continue;
      const auto grid = parallel::make_process_grid(world, ring);
      const RetrievalResult right = evaluate_passkey(*bytes, grid, byte_options(), copying()),
                            wrong = evaluate_passkey(*bytes, grid, byte_options(), constant());
      EXPECT_EQ(right.accuracy(), 1);
      EXPECT_EQ(wrong.accuracy(), 0);
      ASSERT_EQ(right.prompts.size(), 12u);
      ASSERT_EQ(right.cells.size(), 6u);
      std::set<std::int64_t> keys;
      for (const RetrievalCell& cell : right.cells) EXPECT_EQ(cell.trials, 2);
      for (const RetrievalCell& cell : right.cells) EXPECT_EQ(cell.correct, 2);
      for (const RetrievalOutcome& outcome : right.prompts) {
        keys.insert(outcome.number);
        EXPECT_EQ(outcome.tokens, right.cells[static_cast<std::size_t>(outcome.cell)].length);
        EXPECT_NE(outcome.tail.find("The pass key is"), std::string::npos);
      }
      EXPECT_GE(keys.size(), 11u);
    }
  });
}

TEST(Passkey, GoesOnWithoutAskingAgain) {
  const auto bytes = make_tokenizer("bytes");
  const capstan::testing::TestFolder folder;
  const Journal journal{folder / "p.json.part", "{\"passkey\":1}"};
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  int asked = 0;
  const RetrievalAnswer breaking = [&](const RetrievalPrompt& prompt, std::int64_t) {
    if (++asked == 6) throw Error(ExitCode::io, "cut short");
    return prompt.expected;
  };
  EXPECT_THROW(evaluate_passkey(*bytes, grid, byte_options(), breaking, journal), Error);
  const RetrievalResult whole = evaluate_passkey(*bytes, grid, byte_options(), copying());
  const RetrievalResult got = evaluate_passkey(*bytes, grid, byte_options(), breaking, journal);
  EXPECT_EQ(asked, 6 + 12 - 5);
  EXPECT_EQ(retrieval_json(got, "m", grid), retrieval_json(whole, "m", grid));
}

TEST(Passkey, PresetAsksTheTable) {
  const auto bytes = make_tokenizer("bytes");
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  PasskeyOptions options;
  options.longlora = true;
  options.bos = 256;
  const RetrievalResult result = evaluate_passkey(*bytes, grid, options, copying());
  EXPECT_EQ(result.prompts.size(), 160u);
  EXPECT_EQ(result.cells.size(), 8u);
  EXPECT_EQ(result.cells[0].trials, 20);
  EXPECT_EQ(result.prompts[0].number, 49674);
  const auto json = nlohmann::json::parse(retrieval_json(result, "m", grid));
  EXPECT_EQ(json.at("task"), "passkey");
  EXPECT_EQ(json.at("accuracy"), 1.0);
  EXPECT_EQ(json.at("preset"), "longlora");
  EXPECT_EQ(json.at("cells").size(), 8u);
  EXPECT_TRUE(json.at("cells")[0].at("depth").is_null());
  EXPECT_EQ(json.at("prompts")[0].at("expected"), json.at("prompts")[0].at("given"));
  EXPECT_EQ(json.at("prompts")[0].at("key"), 49674);
  for (const char* key : {"accuracy", "correct", "trials", "preset", "seed", "scoring", "lengths_count", "bos",
                          "tokenizer", "model", "cells", "prompts", "ranks"})
    EXPECT_TRUE(json.contains(key)) << key;
  for (const char* key : {"length", "tokens", "depth", "key", "tail", "expected", "given", "correct"})
    EXPECT_TRUE(json.at("prompts")[0].contains(key)) << key;
}

TEST(Passkey, ModelAnswersAlikeOnEveryGrid) {
  const auto bytes = make_tokenizer("bytes");
  PasskeyOptions options = byte_options();
  options.lengths = {330};
  options.tile = 16;
  const auto self = parallel::make_self_communicator();
  const auto alone = tests::small_model({"rope+cope", DType::f64, Device::ref, 258});
  const RetrievalResult expected =
      evaluate_passkey(*bytes, parallel::make_process_grid(*self, 1), options, model_answer(*alone, *self, 16));
  tests::for_rank_counts({1, 2, 4}, [&](parallel::Communicator& world) {
    const auto model = tests::small_model({"rope+cope", DType::f64, Device::ref, 258});
    for (int ring = 1; ring <= world.size(); ring *= 2) {
      const auto grid = parallel::make_process_grid(world, ring);
      const RetrievalResult got = evaluate_passkey(*bytes, grid, options, model_answer(*model, *grid.ring, 16));
      for (std::size_t i = 0; i < got.prompts.size(); ++i)
        EXPECT_EQ(got.prompts[i].given, expected.prompts[i].given) << "ring " << ring;
    }
  });
}

TEST(Passkey, RefusesATokenizerThatTheModelDoesNotKnow) {
  const auto bytes = make_tokenizer("bytes");
  const auto self = parallel::make_self_communicator();
  const auto model = tests::small_model({"rope"});  // 37 ids
  const std::string line = error_of(ExitCode::bad_data, [&] {
    model_answer(*model, *self, 64)(passkey_prompt(*bytes, 256, {0, 0, 1}), 1);
  });
  expect_parts(line, {"0 to 36"});
}

}  // namespace
}  // namespace capstan::framework
