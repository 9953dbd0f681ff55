#include "framework/generator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/framework/small_model.h"
#include "tests/support/ranks.h"

namespace capstan::framework {
namespace {

using tests::small_model;

std::vector<std::int32_t> random_prompt(std::int64_t tokens, std::int64_t vocabulary) {
  const Tensor ids = tests::random_ids({tokens}, Device::ref, 9, 0, std::int32_t(vocabulary));
  return {ids.as<std::int32_t>(), ids.as<std::int32_t>() + tokens};
}

/// logits [T, V] of a whole sequence by one full forward on one rank.
Tensor full_logits(Model& model, const std::vector<std::int32_t>& ids, std::int64_t declared_length,
                   std::int64_t tile) {
  const auto self = parallel::make_self_communicator();
  Batch batch = tests::whole_batch(ids, model.parameters().all().front().value.device());
  batch.declared_length = declared_length;
  const Pass pass = model.forward(model.make_ring(*self, std::int64_t(ids.size()), tile), batch, tile, Keep::nothing);
  return model.logits(pass.xn);
}

/// Feeds `ids` after a prompt of `prompt` tokens and compares every row of logits with the full forward's.
void compare(parallel::Communicator& ring, Model& model, const Tensor& expected, const std::vector<std::int32_t>& ids,
             std::int64_t prompt, std::int64_t tile, double bound, std::int64_t prefill_chunk = 0) {
  Generator generator(model, ring, tile, prefill_chunk);
  const std::int64_t total = std::int64_t(ids.size());
  View logits = generator.prefill({ids.begin(), ids.begin() + prompt}, total);
  for (std::int64_t at = prompt;; ++at) {
    ASSERT_LE(tests::relative_error(logits, expected.view()[at - 1]), bound) << "after " << at << " tokens";
    if (at == total) return;
    logits = generator.step(ids[static_cast<std::size_t>(at)]);
  }
}

class CachedDecode : public testing::TestWithParam<const char*> {};

TEST_P(CachedDecode, EqualsAFullForward) {
  tests::for_rank_counts({1, 2, 3, 4}, [](parallel::Communicator& ring) {
    const auto model = small_model({GetParam()});
    for (const std::int64_t tile : {16, 64}) {
      const std::vector<std::int32_t> ids = random_prompt(160, model->config().vocabulary);
      const Tensor expected = full_logits(*model, ids, 0, tile);
      for (const std::int64_t prompt : {1, 63, 64, 130}) {
        SCOPED_TRACE(fmt::format("tile {}, prompt {}", tile, prompt));
        compare(ring, *model, expected, ids, prompt, tile, 1e-10);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  });
}

TEST_P(CachedDecode, CoveringGoesOnPastTheAddedChunks) {
  tests::for_rank_counts({1, 2, 3}, [](parallel::Communicator& ring) {
    const auto model = small_model({GetParam()});
    const std::vector<std::int32_t> ids = random_prompt(640, model->config().vocabulary);
    compare(ring, *model, full_logits(*model, ids, 0, 64), ids, 70, 64, 1e-10);
  });
}

INSTANTIATE_TEST_SUITE_P(Encodings, CachedDecode, testing::Values("none", "rope", "cope", "rope+cope", "tape"),
                         [](const auto& encoding) { return tests::name_of_kind(encoding.param); });

/// Every encoding, cached against full; the prompt in one piece and in several, whose row states travel (pass_q).
class CachedDecodeCovering : public testing::TestWithParam<std::string> {};

TEST_P(CachedDecodeCovering, EqualsAFullForward) {
  tests::for_rank_counts({1, 2, 3, 4}, [](parallel::Communicator& ring) {
    const auto model = small_model({GetParam()});
    const std::vector<std::int32_t> ids = random_prompt(150, model->config().vocabulary);
    const Tensor expected = full_logits(*model, ids, 0, 16);
    for (const std::int64_t prompt : {5, 64, 65, 97, 140})
      for (const std::int64_t prefill_chunk : {0, 16, 48}) {
        SCOPED_TRACE(fmt::format("prompt {} in pieces of {}", prompt, prefill_chunk));
        compare(ring, *model, expected, ids, prompt, 16, 1e-10, prefill_chunk);
        if (testing::Test::HasFatalFailure()) return;
      }
  });
}

std::vector<std::string> all_kinds() {
  std::vector<std::string> kinds;
  for (const EncodingKind& row : encoding_kinds())
    if (row.option.empty()) kinds.push_back(row.kind);
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Encodings, CachedDecodeCovering, testing::ValuesIn(all_kinds()),
                         [](const auto& encoding) { return tests::name_of_kind(encoding.param); });

TEST(Generator, CachedDecodeOfOtherBlocks) {
  tests::for_rank_counts({1, 2, 3}, [](parallel::Communicator& ring) {
    for (const tests::BlockForm& form : tests::block_forms()) {
      SCOPED_TRACE(form.text());
      tests::SmallModel wish{"tape"};
      wish.form = form;
      const auto model = small_model(wish);
      const std::vector<std::int32_t> ids = random_prompt(100, model->config().vocabulary);
      const Tensor expected = full_logits(*model, ids, 0, 16);
      for (const std::int64_t prefill_chunk : {0, 32})
        compare(ring, *model, expected, ids, 70, 16, 1e-10, prefill_chunk);
    }
  });
}

TEST(Generator, CachedDecodeOfBlockGatesFromTokens) {
  tests::for_rank_counts({1, 2, 3}, [](parallel::Communicator& ring) {
    PositionConfig position = tests::tiny_position();
    position.block_gates = "token";
    const auto model = small_model({"rope+hierarchical_cope"}, position);
    const std::vector<std::int32_t> ids = random_prompt(100, model->config().vocabulary);
    const Tensor expected = full_logits(*model, ids, 0, 16);
    for (const std::int64_t prefill_chunk : {0, 32}) compare(ring, *model, expected, ids, 70, 16, 1e-10, prefill_chunk);
  });
}

TEST(Generator, DynamicScalingTakesTheDeclaredTotalLength) {
  tests::for_rank_counts({1, 2}, [](parallel::Communicator& ring) {
    PositionConfig position;
    position.scaling = "dynamic";
    position.factor = 2;
    const auto model = small_model({"rope"}, position);
    const std::vector<std::int32_t> ids = random_prompt(200, model->config().vocabulary);  // original length 128
    compare(ring, *model, full_logits(*model, ids, 200, 64), ids, 40, 64, 1e-10);
    position.length = 400;
    const auto declared = small_model({"rope"}, position);
    compare(ring, *declared, full_logits(*declared, ids, 400, 64), ids, 40, 64, 1e-10);
  });
}

TEST(Generator, FastDeviceStaysNearDouble) {
  tests::for_rank_counts({1, 2, 3}, [](parallel::Communicator& ring) {
    for (const char* kind : {"rope", "rope+cope", "tape"}) {
      SCOPED_TRACE(kind);
      const auto exact = small_model({kind}), fast = small_model({kind, DType::f32, Device::cpu});
      const std::vector<std::int32_t> ids = random_prompt(150, exact->config().vocabulary);
      compare(ring, *fast, full_logits(*exact, ids, 0, 64), ids, 70, 64, 1e-4);
    }
  });
}

TEST(ChooseToken, GreedyTakesTheLowestOfEquals) {
  const Tensor logits = tests::tensor_of({5}, DType::f32, Device::cpu, {0, 3, 1, 3, 2});
  EXPECT_EQ(choose_token(logits, {}, 0, 0), 1);
}

TEST(ChooseToken, DrawsFollowTheDistributionAndTheirCoordinatesOnly) {
  const Tensor logits = tests::tensor_of({3}, DType::f64, Device::ref, {std::log(0.2), std::log(0.5), std::log(0.3)});
  const Sampling sampling{1.0, 7};
  double count[3] = {};
  constexpr int draws = 20000;
  for (int i = 0; i < draws; ++i) ++count[choose_token(logits, sampling, i % 100, i / 100)];
  EXPECT_NEAR(count[0] / draws, 0.2, 0.015);
  EXPECT_NEAR(count[1] / draws, 0.5, 0.015);
  EXPECT_NEAR(count[2] / draws, 0.3, 0.015);
  EXPECT_EQ(choose_token(logits, sampling, 3, 5), choose_token(logits, sampling, 3, 5));
}

TEST(ChooseToken, LowTemperatureIsGreedy) {
  const Tensor logits = tests::tensor_of({3}, DType::f32, Device::cpu, {0.1, 0.2, 0.15});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(choose_token(logits, {1e-4, 1}, 0, i), 1);
}

TEST(ChooseToken, RefusesLogitsThatAreNotFinite) {
  const Tensor logits = tests::tensor_of({2}, DType::f32, Device::cpu, {0, std::nan("")});
  EXPECT_THROW(choose_token(logits, {}, 0, 0), Error);
}

TEST(GenerateTokens, StopsAtAnEndTokenOrTheLimit) {
  const auto self = parallel::make_self_communicator();
  const auto model = small_model({"rope"});
  Generator generator(*model, *self, 16);
  const Generated free = generate_tokens(generator, {3, 4}, 10, {}, {});
  ASSERT_EQ(free.ids.size(), 10u);
  EXPECT_FALSE(free.ended);
  const std::int32_t end = free.ids[4];
  const Generated stopped = generate_tokens(generator, {3, 4}, 10, {end}, {});
  EXPECT_TRUE(stopped.ended);
  EXPECT_EQ(stopped.ids.back(), end);
  EXPECT_LE(stopped.ids.size(), 5u);
}

DocumentOptions document_options() {
  DocumentOptions options;
  options.documents = 6;
  options.max_tokens = 40;
  options.bos = 1;
  options.ends = {2, 5, 7};
  options.sampling = {1.0, 11};
  options.tile = 16;
  return options;
}

TEST(GenerateDocuments, AreTheSameForEveryGrid) {
  const auto alone = small_model({"rope", DType::f64, Device::ref, 37, 0.1});
  const auto self = parallel::make_self_communicator();
  const GeneratedDocuments expected =
      generate_documents(*alone, parallel::make_process_grid(*self, 1), document_options());
  ASSERT_EQ(expected.documents.size(), 6u);
  tests::for_rank_counts({1, 2, 3, 4}, [&](parallel::Communicator& world) {
    const auto model = small_model({"rope", DType::f64, Device::ref, 37, 0.1});
    for (int ring = 1; ring <= world.size(); ++ring) {
      if (world.size() % ring != 0) continue;
      const GeneratedDocuments made =
          generate_documents(*model, parallel::make_process_grid(world, ring), document_options());
      EXPECT_EQ(made.documents, expected.documents) << "ring " << ring;
      EXPECT_EQ(made.unfinished, expected.unfinished);
      EXPECT_EQ(made.tokens, expected.tokens);
    }
  });
}

TEST(GenerateDocuments, SaysWhenAlmostNoneEnds) {
  const auto self = parallel::make_self_communicator();
  const auto model = small_model({"rope", DType::f64, Device::ref, 37, 0.1});
  DocumentOptions options = document_options();
  options.max_tokens = 1;
  options.ends = {36};
  options.documents = 2;
  options.sampling.temperature = 0;
  try {
    generate_documents(*model, parallel::make_process_grid(*self, 1), options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::config);
    EXPECT_NE(std::string(error.what()).find("--max-tokens"), std::string::npos);
  }
}

}  // namespace
}  // namespace capstan::framework
