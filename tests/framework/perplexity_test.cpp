#include "framework/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "framework/json.h"
#include "tests/framework/small_model.h"
#include "tests/framework/test_folder.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

using capstan::testing::error_of;
using capstan::testing::expect_parts;
using tests::small_model;

constexpr std::int64_t vocabulary = 37;

/// A token file with documents of these lengths, each beginning with BOS 1, and two words a token.
TokenFile make_file(const capstan::testing::TestFolder& folder, const std::vector<std::int64_t>& lengths,
                    std::int64_t file_vocabulary = vocabulary) {
  std::vector<TokenDocument> documents;
  std::uint64_t seed = 0;
  for (const std::int64_t length : lengths) {
    TokenDocument document;
    for (std::int64_t t = 0; t < length; ++t)
      document.ids.push_back(
          t == 0 ? 1 : std::int32_t(2 + tests::random_bits(++seed, 3) % std::uint64_t(file_vocabulary - 2)));
    document.words = 2 * length;
    documents.push_back(document);
  }
  TokenFileInfo info;
  info.vocabulary = file_vocabulary;
  info.bos = 1;
  info.tokenizer = "bytes";
  info.tokenizer_hash = "bytes";
  info.source = "test";
  write_token_file(folder / "data.h5", documents, info);
  return TokenFile::open(folder / "data.h5");
}

PerplexityOptions options_of(std::int64_t window, std::int64_t stride, Convention convention = Convention::once,
                             bool joined = false) {
  PerplexityOptions options;
  options.window = window;
  options.stride = stride;
  options.convention = convention;
  options.joined = joined;
  options.tile = 16;
  return options;
}

// ---- which positions count, by brute force --------------------------------------------------------------------------

/// How often each prediction of a stream counts, and the least number of tokens before it within its window when it
/// does.
struct Coverage {
  std::vector<int> times;
  std::vector<std::int64_t> context;
};

Coverage cover(const WindowPlan& plan, std::int64_t begin, std::int64_t predictions) {
  Coverage coverage{std::vector<int>(static_cast<std::size_t>(predictions)),
                    std::vector<std::int64_t>(static_cast<std::size_t>(predictions), 1 << 30)};
  for (const Window& window : plan.windows) {
    if (window.begin < begin || window.begin >= begin + predictions) continue;
    for (std::int64_t at = window.count_from; at < window.length; ++at) {
      const std::int64_t p = window.begin - begin + at;
      ++coverage.times.at(static_cast<std::size_t>(p));
      coverage.context[static_cast<std::size_t>(p)] = std::min(coverage.context[static_cast<std::size_t>(p)], at);
    }
  }
  return coverage;
}

TEST(PlanWindows, OnceCountsEachPredictionOnceWithEnoughContext) {
  for (std::int64_t tokens = 2; tokens <= 40; ++tokens)
    for (std::int64_t window = 1; window <= 20; ++window)
      for (std::int64_t stride = 1; stride <= window; ++stride) {
        const WindowPlan plan = plan_windows({0, tokens}, {1}, options_of(window, stride));
        const Coverage coverage = cover(plan, 0, tokens - 1);
        for (std::int64_t p = 0; p < tokens - 1; ++p) {
          ASSERT_EQ(coverage.times[static_cast<std::size_t>(p)], 1)
              << "tokens " << tokens << " window " << window << " stride " << stride;
          // In the first window p tokens stand before; later all but the last stride positions are context.
          ASSERT_GE(coverage.context[static_cast<std::size_t>(p)], std::min(p, window - stride));
        }
        ASSERT_EQ(plan.windows.back().begin + plan.windows.back().length, tokens - 1)
            << "the last window ends at the end";
        for (const Window& w : plan.windows) ASSERT_EQ(w.length, std::min(window, tokens - 1));
      }
}

TEST(PlanWindows, LongloraCountsEveryPositionOfEveryWholeWindow) {
  for (std::int64_t tokens = 5; tokens <= 40; ++tokens)
    for (std::int64_t window = 1; window <= tokens - 1; ++window)
      for (std::int64_t stride = 1; stride <= window; ++stride) {
        const WindowPlan plan = plan_windows({0, 2, tokens}, {1, 1}, options_of(window, stride, Convention::longlora));
        std::int64_t expected = 0;
        for (std::int64_t at = 0; at + window < tokens; at += stride) ++expected;
        ASSERT_EQ(std::int64_t(plan.windows.size()), expected);
        for (std::size_t w = 0; w < plan.windows.size(); ++w) {
          ASSERT_EQ(plan.windows[w].begin, std::int64_t(w) * stride);
          ASSERT_EQ(plan.windows[w].length, window);
          ASSERT_EQ(plan.windows[w].counted(), window);
        }
      }
}

TEST(PlanWindows, DocumentsStaySeparateOrAreJoined) {
  const std::vector<std::int64_t> offsets{0, 10, 11, 30}, words{5, 1, 9};
  const WindowPlan separate = plan_windows(offsets, words, options_of(8, 4));
  EXPECT_EQ(separate.skipped_documents, 1);
  EXPECT_EQ(separate.words, 14);
  EXPECT_EQ(cover(separate, 0, 9).times, std::vector<int>(9, 1));
  EXPECT_EQ(cover(separate, 11, 18).times, std::vector<int>(18, 1));
  const WindowPlan joined = plan_windows(offsets, words, options_of(8, 4, Convention::once, true));
  EXPECT_EQ(joined.skipped_documents, 0);
  EXPECT_EQ(joined.words, 15);
  EXPECT_EQ(cover(joined, 0, 29).times, std::vector<int>(29, 1));
}

TEST(PlanWindows, MaxWindowsTakesTheFirst) {
  PerplexityOptions options = options_of(8, 4);
  options.max_windows = 1;
  const WindowPlan plan = plan_windows({0, 30}, {9}, options);
  ASSERT_EQ(plan.windows.size(), 1u);
  EXPECT_EQ(plan.windows[0].counted(), 8);
  EXPECT_FALSE(plan.complete);
}

TEST(PlanWindows, DocumentTokensTakeTheStartOfEach) {
  PerplexityOptions options;
  for (const std::int64_t window : {4, 8, 16}) {
    options = options_of(window, window);
    options.document_tokens = 12;
    const WindowPlan plan = plan_windows({0, 10, 40}, {5, 9}, options);
    EXPECT_FALSE(plan.complete);
    EXPECT_EQ(cover(plan, 0, 9).times, std::vector<int>(9, 1)) << "shorter than the part: whole";
    std::vector<int> times(29, 0);
    std::fill_n(times.begin(), 12, 1);
    EXPECT_EQ(cover(plan, 10, 29).times, times) << window;
  }
  options.document_tokens = 29;
  EXPECT_TRUE(plan_windows({0, 10, 40}, {5, 9}, options).complete);
}

// ---- figures --------------------------------------------------------------------------------------------------------

/// Over the window alone, as a model on one rank sees it.
double nll_of_window(Model& model, const TokenFile& data, const Window& window) {
  const auto self = parallel::make_self_communicator();
  const auto layout = parallel::SequenceLayout::contiguous(window.length, 1, 16);
  std::vector<std::int32_t> ids = data.read(window.begin, window.begin + window.length);
  Batch batch = tests::whole_batch(ids, Device::ref);
  const std::int32_t last = data.read(window.begin + window.length, window.begin + window.length + 1)[0];
  batch.targets.as<std::int32_t>()[window.length - 1] = last;
  const Pass pass = model.forward(model.make_ring(*self, layout.length(), 16), batch, 16, Keep::nothing);
  double sum = 0;
  for (std::int64_t t = window.count_from; t < window.length; ++t) sum += pass.nll.as<double>()[t];
  return sum;
}

TEST(Perplexity, UniformModelGivesTheVocabulary) {
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {40, 1, 7, 90});
  const auto model = small_model({"rope", DType::f64, Device::ref, vocabulary, 0});
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  for (const bool joined : {false, true})
    for (const Convention convention : {Convention::once, Convention::longlora}) {
      const PerplexityResult result = evaluate_perplexity(*model, grid, data, options_of(32, 8, convention, joined));
      EXPECT_NEAR(result.mean_nll, std::log(double(vocabulary)), 1e-13);
      EXPECT_NEAR(result.perplexity, double(vocabulary), 1e-11);
      std::int64_t in_buckets = 0;
      for (const PositionBucket& bucket : result.buckets) in_buckets += bucket.counted;
      EXPECT_EQ(in_buckets, result.counted_tokens);
      if (convention == Convention::longlora) {
        EXPECT_EQ(result.counted_tokens, 32 * ((137 - 32) / 8 + 1));
        EXPECT_EQ(result.word_perplexity, 0);
      } else {
        const std::int64_t counted = joined ? 137 : 39 + 6 + 89, words = 2 * (joined ? 138 : 137);
        EXPECT_EQ(result.counted_tokens, counted);
        EXPECT_EQ(result.words, words);
        EXPECT_NEAR(result.word_perplexity, std::exp(double(counted) * std::log(double(vocabulary)) / double(words)),
                    1e-12);
        EXPECT_EQ(result.skipped_documents, joined ? 0 : 1);
        EXPECT_EQ(result.short_documents, joined ? 0 : 1);
      }
    }
}

TEST(Perplexity, SumsTheModelsOwnWindows) {
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {50, 70});
  const auto model = small_model({"rope+cope"});
  const auto self = parallel::make_self_communicator();
  const PerplexityOptions options = options_of(32, 16);
  double expected = 0;
  for (const Window& window : plan_windows(data.document_offsets(), data.words(), options).windows)
    expected += nll_of_window(*model, data, window);
  const PerplexityResult result = evaluate_perplexity(*model, parallel::make_process_grid(*self, 1), data, options);
  EXPECT_NEAR(result.total_nll, expected, 1e-9);
}

TEST(Perplexity, IsTheSameOnEveryGrid) {
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {100, 1, 60, 150});
  const auto self = parallel::make_self_communicator();
  for (const char* kind : {"none", "rope", "rope+cope", "tape"})
    for (const bool joined : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", kind, joined));
      PerplexityOptions options = options_of(64, 24, Convention::once, joined);
      const PerplexityResult alone =
          evaluate_perplexity(*small_model({kind}), parallel::make_process_grid(*self, 1), data, options);
      tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
        const auto model = small_model({kind});
        for (int ring = 1; ring <= world.size(); ++ring) {
          if (world.size() % ring != 0) continue;
          const PerplexityResult got =
              evaluate_perplexity(*model, parallel::make_process_grid(world, ring), data, options);
          EXPECT_NEAR(got.mean_nll, alone.mean_nll, 1e-12 * alone.mean_nll) << "ring " << ring;
          EXPECT_EQ(got.counted_tokens, alone.counted_tokens);
          EXPECT_EQ(got.words, alone.words);
          for (std::size_t b = 0; b < got.buckets.size(); ++b)
            EXPECT_NEAR(got.buckets[b].mean_nll, alone.buckets[b].mean_nll, 1e-11);
        }
      });
    }
}

TEST(Perplexity, GoesOnWithTheSameBits) {
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {100, 1, 60, 150});
  const PerplexityOptions options = options_of(64, 24);
  const auto self = parallel::make_self_communicator();
  const auto alone = small_model({"rope+cope"});
  const Journal journal{folder / "p.json.part", "{\"perplexity\":1}"};
  const PerplexityResult whole =
      evaluate_perplexity(*alone, parallel::make_process_grid(*self, 1), data, options, journal);
  const std::string noted = capstan::testing::slurp(journal.path);
  EXPECT_EQ(std::count(noted.begin(), noted.end(), '\n'), whole.windows + 1);
  tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
    const auto model = small_model({"rope+cope"});
    for (const std::size_t kept : {std::size_t(0), noted.size() / 3, noted.size() - 9}) {
      if (world.rank() == 0) folder.write("p.json.part", noted.substr(0, kept));
      world.barrier();
      const PerplexityResult got =
          evaluate_perplexity(*model, parallel::make_process_grid(world, 1), data, options, journal);
      EXPECT_EQ(got.total_nll, whole.total_nll) << kept;
      EXPECT_EQ(got.mean_nll, whole.mean_nll) << kept;
      for (std::size_t b = 0; b < got.buckets.size(); ++b)
        EXPECT_EQ(got.buckets[b].mean_nll, whole.buckets[b].mean_nll);
      world.barrier();
    }
  });
}

TEST(Perplexity, FirstWindowAlone) {
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {100, 200});
  const auto model = small_model({"rope"});
  const auto self = parallel::make_self_communicator();
  PerplexityOptions options = options_of(128, 64, Convention::once, true);
  options.max_windows = 1;
  const PerplexityResult result = evaluate_perplexity(*model, parallel::make_process_grid(*self, 1), data, options);
  EXPECT_EQ(result.counted_tokens, 128);
  EXPECT_NEAR(result.total_nll, nll_of_window(*model, data, {0, 128, 0}), 1e-9);
  EXPECT_EQ(result.word_perplexity, 0) << "words of text that was not read";
}

TEST(Perplexity, DynamicScalingTakesTheWindowAsLength) {
  // The last window of a document may be shorter, yet its tokens must get the phases of the others.
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {200, 400});
  const auto self = parallel::make_self_communicator();
  PositionConfig position;
  position.scaling = "dynamic";
  position.factor = 2;
  PositionConfig declared = position;
  declared.length = 256;
  const auto grid = parallel::make_process_grid(*self, 1);
  const PerplexityOptions options = options_of(256, 256);
  EXPECT_EQ(evaluate_perplexity(*small_model({"rope"}, position), grid, data, options).mean_nll,
            evaluate_perplexity(*small_model({"rope"}, declared), grid, data, options).mean_nll);
}

TEST(Perplexity, ReportNamesItsConvention) {
  const capstan::testing::TestFolder folder;
  const TokenFile data = make_file(folder, {100});
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const PerplexityResult result = evaluate_perplexity(*small_model({"rope"}), grid, data, options_of(32, 0));
  const auto json = nlohmann::json::parse(perplexity_json(result, "model-folder", "data.h5", grid));
  EXPECT_EQ(json.at("window"), 32);
  EXPECT_EQ(json.at("stride"), 16);
  EXPECT_EQ(json.at("convention"), "once");
  EXPECT_EQ(json.at("documents"), "separate");
  EXPECT_EQ(json.at("counted_tokens"), 99);
  EXPECT_EQ(json.at("words"), 200);
  EXPECT_EQ(json.at("ranks").at("ring"), 1);
  EXPECT_EQ(json.at("mean_nll").get<double>(), result.mean_nll);
  EXPECT_TRUE(json.at("word_perplexity").is_number());
  expect_parts(perplexity_table(result, "model-folder", "data.h5"),
               {"model-folder", "stride 16", "BOS", "counted tokens  99"});
}

TEST(Perplexity, RefusesWhatItCannotMeasure) {
  const auto self = parallel::make_self_communicator();
  const auto grid = parallel::make_process_grid(*self, 1);
  const auto model = small_model({"rope"});
  const auto line = [&](const std::vector<std::int64_t>& lengths, std::int64_t window,
                        std::int64_t file_vocabulary = vocabulary) {
    const capstan::testing::TestFolder folder;
    const TokenFile data = make_file(folder, lengths, file_vocabulary);
    return error_of(ExitCode::bad_data, [&] { evaluate_perplexity(*model, grid, data, options_of(window, 0)); });
  };
  expect_parts(line({1}, 8), {"data.h5", "1 token", "at least 2"});
  expect_parts(line({20}, 32), {"20 tokens", "window of 32", "33"});
  expect_parts(line({1, 1, 1, 1}, 2), {"4 documents of one token"});
  expect_parts(line({90}, 32, 300), {"is id", "0 to 36"});

  const capstan::testing::TestFolder folder;
  TokenFileInfo info;
  info.vocabulary = vocabulary;
  write_token_file(folder / "task.h5", {{{1, 2, 3, 4}, 0, {0, 0, 1, 1}}}, info);
  const TokenFile task = TokenFile::open(folder / "task.h5");
  expect_parts(error_of(ExitCode::bad_data, [&] { evaluate_perplexity(*model, grid, task, options_of(2, 0)); }),
               {"task.h5", "loss mask", "eval task"});
}

}  // namespace
}  // namespace capstan::framework
