#include "framework/needle.h"

#include <gtest/gtest.h>

#include <set>

#include "framework/json.h"
#include "tests/framework/small_model.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;
using capstan::testing::TestFolder;

const std::string noise = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

RetrievalAnswer copying() {
  return [](const RetrievalPrompt& prompt, std::int64_t) { return prompt.expected; };
}
RetrievalAnswer constant() {
  return [](const RetrievalPrompt&, std::int64_t tokens) {
    return std::vector<std::int32_t>(static_cast<std::size_t>(tokens), '7');
  };
}

NeedleOptions byte_options(bool multikey) {
  NeedleOptions options;
  options.lengths = {900, 1500};
  options.depths = 3;
  options.trials = 2;
  options.bos = 256;
  options.multikey = multikey;
  return options;
}

std::int64_t count_of(const std::string& text, const std::string& part) {
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
  return count;
}

/// The whole text of one prompt; bytes decode to it.
std::string text_of(const RetrievalPrompt& prompt) { return make_tokenizer("bytes")->decode(prompt.ids); }

// ---- haystacks ------------------------------------------------------------------------------------------------------

TEST(Sentences, EndAtTheirMarksAndAtEmptyLines) {
  const std::vector<std::string> expected = {"One is", "Two, 3.5 and more!", "“Is it?”", "(Yes.)", "A title",
                                             "The end"};
  EXPECT_EQ(sentences_of("\n One\t is\n\nTwo, 3.5\nand more! “Is it?” (Yes.)\r\nA title\n \nThe end \n"), expected);
  EXPECT_EQ(sentences_of("Wait... What?!"), (std::vector<std::string>{"Wait...", "What?!"}));
  EXPECT_TRUE(sentences_of(" \n\n ").empty());
}

TEST(Haystack, OfAFileIsItsSentences) {
  const TestFolder folder;
  const Haystack haystack = file_haystack(folder.write("book.txt", "It was late. It\nrained."));
  EXPECT_EQ(haystack.pieces, (std::vector<std::string>{"It was late.", "It rained."}));
  EXPECT_EQ(haystack.hash.size(), 16u);
  expect_parts(error_of(ExitCode::io, [&] { file_haystack(folder / "none.txt"); }), {"none.txt", "cannot open"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file_haystack(folder.write("blank.txt", "\n ")); }),
               {"blank.txt", "no sentence"});
  expect_parts(error_of(ExitCode::bad_data, [&] { file_haystack(folder.write("odd.txt", "caf\xe9.")); }),
               {"odd.txt", "UTF-8"});
}

// ---- needles --------------------------------------------------------------------------------------------------------

TEST(Needles, DifferInKeyAndNumber) {
  for (const std::int64_t count : {std::int64_t(1), std::int64_t(4), largest_needles}) {
    std::set<std::string> keys;
    std::set<std::int64_t> numbers;
    for (const Needle& needle : draw_needles(count, 1, 4096, 0.25, 3)) {
      keys.insert(needle.key);
      numbers.insert(needle.number);
      EXPECT_EQ(std::to_string(needle.number).size(), 7u);
      EXPECT_TRUE(needle.place >= 0 && needle.place <= 1) << needle.place;
      EXPECT_EQ(std::count(needle.key.begin(), needle.key.end(), '-'), 1);
    }
    EXPECT_EQ(std::int64_t(keys.size()), count);
    EXPECT_EQ(std::int64_t(numbers.size()), count);
  }
}

TEST(Needles, ArePureFunctionsOfTheirPrompt) {
  const auto key = [](std::uint64_t seed, std::int64_t length, double depth, std::int64_t trial) {
    const Needle needle = draw_needles(1, seed, length, depth, trial).front();
    return fmt::format("{} {}", needle.key, needle.number);
  };
  const std::string one = key(1, 512, 0.5, 0);
  EXPECT_EQ(key(1, 512, 0.5, 0), one);
  EXPECT_NE(key(2, 512, 0.5, 0), one);
  EXPECT_NE(key(1, 513, 0.5, 0), one);
  EXPECT_NE(key(1, 512, 0.25, 0), one);
  EXPECT_NE(key(1, 512, 0.5, 1), one);
  const std::vector<Needle> few = draw_needles(3, 1, 512, 0.5, 0), many = draw_needles(9, 1, 512, 0.5, 0);
  for (std::size_t i = 0; i < few.size(); ++i) EXPECT_EQ(few[i].key, many[i].key);
  EXPECT_EQ(few.front().place, 0.5);
}

TEST(Needles, TextIsRulers) {
  const std::vector<Needle> needles = {{"calm-anchor", 1234567, 0.5}, {"vivid-window", 7654321, 0}};
  EXPECT_EQ(
      needle_text(noise_haystack(), 2, needles),
      "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about "
      "the number afterwards.\nOne of the special magic numbers for vivid-window is: 7654321.\n" +
          noise + "\nOne of the special magic numbers for calm-anchor is: 1234567.\n" + noise +
          "\nWhat is the special magic number for calm-anchor mentioned in the provided text? The special magic "
          "number for calm-anchor mentioned in the provided text is");
}

TEST(Needles, StandAtTheirDepthBetweenPieces) {
  for (const double depth : {0.0, 0.25, 0.5, 1.0}) {
    const std::vector<Needle> needles = draw_needles(1, 1, 512, depth, 0);
    const std::string text = needle_text(noise_haystack(), 8, needles);
    const std::string before = text.substr(0, text.find("One of the special magic numbers"));
    EXPECT_EQ(count_of(text, noise), 8);
    EXPECT_EQ(count_of(before, noise), std::int64_t(8 * depth));
  }
}

// ---- prompts --------------------------------------------------------------------------------------------------------

TEST(NeedlePrompt, IsAsLongAsWholePiecesAllow) {
  const auto bytes = make_tokenizer("bytes");
  const Haystack haystack = noise_haystack();
  for (const bool multikey : {false, true}) {
    const NeedleOptions options = byte_options(multikey);
    const RetrievalPlan plan = needle_plan(*bytes, haystack, options);
    ASSERT_EQ(plan.prompts(), 12);
    for (std::int64_t i = 0; i < plan.prompts(); ++i) {
      const RetrievalPrompt prompt = plan.prompt(i);
      const std::int64_t length = options.lengths[std::size_t(i / 6)];
      EXPECT_LE(std::ssize(prompt.ids), length);
      EXPECT_GT(std::ssize(prompt.ids) + std::ssize(noise) + 1, length) << "one more piece has room";
      EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), 256), 1);
      const std::string text = text_of(prompt), answer = std::to_string(prompt.number);
      EXPECT_EQ(bytes->decode(prompt.expected), " " + answer);
      EXPECT_EQ(count_of(text, fmt::format("for {} is: {}.", prompt.name, answer)), 1);
      EXPECT_EQ(count_of(text, answer), 1);
      EXPECT_EQ(count_of(text, "One of the special magic numbers for"), multikey ? 4 : 1);
      EXPECT_NEAR(prompt.depth, plan.cells[std::size_t(i / 2)].depth, 0.2);
    }
  }
}

TEST(NeedlePrompt, SentencePiecePromptsNeverExceedTheLength) {
  const auto tokenizer = make_tokenizer(capstan::testing::golden("tokenizers/tok512.model"));
  const Haystack haystack = noise_haystack();
  NeedleOptions options = byte_options(true);
  options.bos = 1;
  const RetrievalPlan plan = needle_plan(*tokenizer, haystack, options);
  for (std::int64_t i = 0; i < plan.prompts(); ++i) {
    const RetrievalPrompt prompt = plan.prompt(i);
    EXPECT_LE(std::ssize(prompt.ids), options.lengths[std::size_t(i / 6)]);
    std::vector<std::int32_t> whole = prompt.ids;
    whole.insert(whole.end(), prompt.expected.begin(), prompt.expected.end());
    EXPECT_TRUE(tokenizer->decode(whole).ends_with(fmt::format("mentioned in the provided text is {}", prompt.number)));
  }
}

TEST(NeedlePrompt, RefusesWhatItCannotMake) {
  const auto bytes = make_tokenizer("bytes");
  const Haystack endless = noise_haystack();
  NeedleOptions options = byte_options(true);
  options.lengths = {900, 300};
  expect_parts(error_of(ExitCode::usage, [&] { needle_plan(*bytes, endless, options); }),
               {"--lengths 300", "4 needle(s)", "bytes", "ask for more"});
  const TestFolder folder;
  std::string book;
  for (int i = 0; i < 20; ++i) book += fmt::format("Sentence number {}. ", i);
  const Haystack finite = file_haystack(folder.write("book.txt", book));
  options = byte_options(false);
  expect_parts(error_of(ExitCode::bad_data, [&] { needle_plan(*bytes, finite, options); }),
               {"book.txt", "20 sentence(s)", "--lengths 900", "longer text"});
  options.lengths = {600};
  const RetrievalPlan plan = needle_plan(*bytes, finite, options);
  const std::string text = text_of(plan.prompt(plan.prompts() - 1));
  expect_parts(text, {"\nSentence number 0. Sentence number 1. "});
}

// ---- scores ---------------------------------------------------------------------------------------------------------

TEST(NeedleScore, OraclesScoreAllAndNothing) {
  const auto bytes = make_tokenizer("bytes");
  const Haystack haystack = noise_haystack();
  tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
    for (const bool multikey : {false, true}) {
      const RetrievalPlan plan = needle_plan(*bytes, haystack, byte_options(multikey));
      for (int ring = 1; ring <= world.size(); ++ring) {
        if (world.size() % ring != 0) continue;
        const auto grid = parallel::make_process_grid(world, ring);
        const RetrievalResult right = evaluate_retrieval(*bytes, grid, plan, copying()),
                              wrong = evaluate_retrieval(*bytes, grid, plan, constant());
        EXPECT_EQ(right.accuracy(), 1);
        EXPECT_EQ(wrong.accuracy(), 0);
        ASSERT_EQ(right.cells.size(), 6u);
        for (const RetrievalCell& cell : right.cells) EXPECT_EQ(cell.correct, 2);
      }
    }
  });
}

TEST(NeedleScore, TheNumberMayStandAnywhereInTheAnswer) {
  const auto bytes = make_tokenizer("bytes");
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const Haystack haystack = noise_haystack();
  NeedleOptions options = byte_options(false);
  options.depths = options.trials = 1;
  options.lengths = {900};
  const RetrievalPlan plan = needle_plan(*bytes, haystack, options);
  const auto score = [&](const std::function<std::string(std::int64_t number)>& says) {
    const auto answer = [&](const RetrievalPrompt& prompt, std::int64_t tokens) {
      EXPECT_EQ(tokens, 8 + spare_tokens);
      return bytes->encode(says(prompt.number));
    };
    return evaluate_retrieval(*bytes, grid, plan, answer).correct();
  };
  EXPECT_EQ(score([](std::int64_t n) { return fmt::format(": {}. The", n); }), 1);
  EXPECT_EQ(score([](std::int64_t n) { return fmt::format(" {} {}", n / 10, n % 10); }), 0);
  EXPECT_EQ(score([](std::int64_t) { return ""; }), 0);
}

TEST(NeedleScore, JsonNamesTheTask) {
  const auto bytes = make_tokenizer("bytes");
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const Haystack haystack = noise_haystack();
  for (const bool multikey : {false, true}) {
    const RetrievalPlan plan = needle_plan(*bytes, haystack, byte_options(multikey));
    const RetrievalResult result = evaluate_retrieval(*bytes, grid, plan, copying());
    const auto json = nlohmann::json::parse(retrieval_json(result, "m", grid));
    EXPECT_EQ(json.at("task"), multikey ? "ruler-multikey" : "ruler-single");
    EXPECT_EQ(json.at("haystack"), "noise");
    EXPECT_EQ(json.at("keys"), multikey ? 4 : 1);
    EXPECT_EQ(json.at("accuracy"), 1.0);
    EXPECT_TRUE(json.at("preset").is_null());
    const RetrievalPrompt first = plan.prompt(0);
    EXPECT_EQ(json.at("prompts")[0].at("key"), first.name);
    EXPECT_EQ(json.at("prompts")[0].at("value"), first.number);
    EXPECT_EQ(json.at("prompts")[0].at("given_text"), fmt::format(" {}", first.number));
    expect_parts(retrieval_table(result, "m"), {json.at("task"), "haystack noise", "one BOS", "accuracy 1.0000"});
  }
}

TEST(NeedleScore, GoesOnWithoutAskingAgain) {
  const auto bytes = make_tokenizer("bytes");
  const TestFolder folder;
  const Journal journal{folder / "n.json.part", "{\"needle\":1}"};
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const Haystack haystack = noise_haystack();
  const RetrievalPlan plan = needle_plan(*bytes, haystack, byte_options(true));
  int asked = 0;
  const RetrievalAnswer breaking = [&](const RetrievalPrompt& prompt, std::int64_t) {
    if (++asked == 6) throw Error(ExitCode::io, "cut short");
    return prompt.expected;
  };
  EXPECT_THROW(evaluate_retrieval(*bytes, grid, plan, breaking, journal), Error);
  const RetrievalResult whole = evaluate_retrieval(*bytes, grid, plan, copying()),
                        got = evaluate_retrieval(*bytes, grid, plan, breaking, journal);
  EXPECT_EQ(asked, 6 + 12 - 5);
  EXPECT_EQ(retrieval_json(got, "m", grid), retrieval_json(whole, "m", grid));
}

TEST(NeedleScore, ModelAnswersAlikeOnEveryGrid) {
  const auto bytes = make_tokenizer("bytes");
  const Haystack haystack = noise_haystack();
  NeedleOptions options = byte_options(true);
  options.lengths = {680};
  options.depths = options.trials = 2;
  options.bos = 256;
  const auto self = parallel::make_self_communicator();
  const auto alone = tests::small_model({"rope+cope", DType::f64, Device::ref, 258});
  const RetrievalPlan plan = needle_plan(*bytes, haystack, options);
  const RetrievalResult expected =
      evaluate_retrieval(*bytes, parallel::make_process_grid(*self, 1), plan, model_answer(*alone, *self, 16));
  tests::for_rank_counts({1, 2, 4}, [&](parallel::Communicator& world) {
    const auto model = tests::small_model({"rope+cope", DType::f64, Device::ref, 258});
    for (int ring = 1; ring <= world.size(); ring *= 2) {
      const auto grid = parallel::make_process_grid(world, ring);
      const RetrievalResult got = evaluate_retrieval(*bytes, grid, plan, model_answer(*model, *grid.ring, 16));
      for (std::size_t i = 0; i < got.prompts.size(); ++i)
        EXPECT_EQ(got.prompts[i].given, expected.prompts[i].given) << "ring " << ring;
    }
  });
}

}  // namespace
}  // namespace capstan::framework
