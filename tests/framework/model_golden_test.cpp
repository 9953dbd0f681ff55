// The real trained stories260K model against a double-precision reference made outside of this program
// (tests/golden/stories260K). What passes here has the right architecture, names, rotations and scalings.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "framework/hf_config.h"
#include "framework/hf_weights.h"
#include "framework/json.h"
#include "framework/model.h"
#include "tests/support/tensors.h"

namespace capstan::framework {
namespace {

using Json = nlohmann::json;

const std::string source = CAPSTAN_SOURCE_DIR;
const std::string model_folder = source + "/recipes/models/stories260K";
const std::string golden_folder = source + "/tests/golden/stories260K";

const Json& oracle() {
  static const Json json = Json::parse(std::ifstream(golden_folder + "/stories260K_reference.json"));
  return json;
}

struct Setting {
  Device device;
  DType type;
};
constexpr Setting exact{Device::ref, DType::f64}, fast{Device::cpu, DType::f32};

/// `stretch`: factor of position interpolation.
std::unique_ptr<Model> load(Setting setting, double stretch = 1) {
  HfConfig config = read_hf_config(model_folder + "/config.json");
  if (stretch > 1) {
    config.position.scaling = "linear";
    config.position.factor = stretch;
  }
  resolve_sizes(config.model, config.position);
  auto model = std::make_unique<Model>(config.model, config.position);
  model->parameters().allocate(setting.device, setting.type, false, [](const std::string&) { return false; });
  load_hf_weights(model->parameters(), open_safetensors_model(model_folder), model_folder, config.position,
                  config.model.tied);
  return model;
}

/// One sequence on one rank; each token's target is the next.
Pass forward(Model& model, const std::vector<std::int32_t>& ids, Device device) {
  const auto length = std::int64_t(ids.size()) - 1;
  Batch batch;
  batch.length = length;
  const Shape shape{1, length};
  batch.tokens = Tensor(shape, DType::i32, device);
  batch.targets = Tensor(shape, DType::i32, device);
  batch.index = Tensor(shape, DType::i64, device);
  batch.position = Tensor(shape, DType::i64, device);
  batch.document = Tensor(shape, DType::i64, device);
  for (std::int64_t t = 0; t < length; ++t) {
    batch.tokens.as<std::int32_t>()[t] = ids[std::size_t(t)];
    batch.targets.as<std::int32_t>()[t] = ids[std::size_t(t) + 1];
    batch.index.as<std::int64_t>()[t] = batch.position.as<std::int64_t>()[t] = t;
  }
  const auto alone = parallel::make_self_communicator();
  const auto layout = parallel::SequenceLayout::contiguous(length, 1, 64);
  const parallel::Ring ring{*alone, layout, parallel::make_schedule("contiguous", layout, 1)};
  return model.forward(ring, batch, 64, Keep::nothing);
}

double mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += values[i];
  return sum / double(end - begin);
}

/// The reference's logits after each of the first 64 tokens of the greedy text.
void expect_greedy_logits(Setting setting, double tolerance) {
  constexpr std::size_t rows = 64, vocabulary = 512;
  std::vector<float> expected(rows * vocabulary);
  std::ifstream(golden_folder + "/stories260K_greedy_logits_64x512.f32", std::ios::binary)
      .read(reinterpret_cast<char*>(expected.data()), std::streamsize(expected.size() * sizeof(float)));
  const auto model = load(setting);
  const Pass pass = forward(*model, oracle()["greedy_ids"], setting.device);
  const auto logits = tests::values_of(model->logits(pass.xn.view().rows(0, rows)));
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) worst = std::max(worst, std::abs(logits[i] - double(expected[i])));
  EXPECT_LE(worst, tolerance);
}

TEST(ModelGolden, LogitsInDouble) { expect_greedy_logits(exact, 1e-6); }

TEST(ModelGolden, LogitsOnCpu) { expect_greedy_logits(fast, 1e-4); }

/// The model is causal, so it writes this text exactly if each of its tokens is the likeliest after those before it.
void expect_greedy_text(Setting setting) {
  const std::vector<std::int32_t> ids = oracle()["greedy_ids"];
  ASSERT_EQ(ids.size(), 201u);
  const auto model = load(setting);
  const Pass pass = forward(*model, ids, setting.device);
  const auto logits = tests::values_of(model->logits(pass.xn));
  const auto vocabulary = std::ptrdiff_t(model->config().vocabulary);
  for (std::ptrdiff_t i = 0; i < 200; ++i) {
    const auto row = logits.begin() + i * vocabulary;
    EXPECT_EQ(std::max_element(row, row + vocabulary) - row, ids[std::size_t(i) + 1]) << "token " << i + 1;
  }
}

TEST(ModelGolden, GreedyTextInDouble) { expect_greedy_text(exact); }

TEST(ModelGolden, GreedyTextOnCpu) { expect_greedy_text(fast); }

TEST(ModelGolden, LossOfEveryTokenOfFiveStories) {
  const auto model = load(exact);
  std::vector<double> all;
  for (const Json& story : oracle()["stories"]) {
    const auto nll = tests::values_of(forward(*model, story["ids"], Device::ref).nll);
    const std::vector<double> expected = story["nll"];
    ASSERT_EQ(nll.size(), expected.size());
    for (std::size_t i = 0; i < nll.size(); ++i) EXPECT_NEAR(nll[i], expected[i], 1e-6) << "token " << i;
    all.insert(all.end(), nll.begin(), nll.end());
  }
  EXPECT_EQ(all.size(), 1804u);
  EXPECT_NEAR(mean(all, 0, all.size()), 1.26644103, 1e-7);
}

/// 1,024 tokens, twice the trained length.
void expect_long_losses(Setting setting, double stretch, const std::string& key, const std::vector<double>& published,
                        double tolerance) {
  const auto model = load(setting, stretch);
  const auto nll = tests::values_of(forward(*model, oracle()["concat1024_ids"], setting.device).nll);
  const std::vector<double> expected = oracle()[key];
  ASSERT_EQ(nll.size(), expected.size());
  for (std::size_t i = 0; i < nll.size(); ++i) EXPECT_NEAR(nll[i], expected[i], tolerance) << "token " << i;
  for (std::size_t block = 0; block < published.size(); ++block) {
    const double loss = mean(nll, block * 128, (block + 1) * 128);
    EXPECT_NEAR(loss, mean(expected, block * 128, (block + 1) * 128), tolerance) << "block " << block;
    EXPECT_NEAR(loss, published[block], 0.006 + tolerance) << "block " << block;  // as in notes/data.md: two decimals
  }
}

const std::vector<double> rope_blocks{1.16, 1.42, 1.32, 1.46, 1.28, 1.22, 0.96, 1.19};
const std::vector<double> stretched_blocks{2.61, 2.22, 2.24, 2.55, 2.19, 2.16, 2.07, 2.11};

TEST(ModelGolden, LongTextOnCpu) { expect_long_losses(fast, 1, "concat1024_nll_rope", rope_blocks, 1e-3); }

TEST(ModelGolden, StretchedLongTextOnCpu) {
  expect_long_losses(fast, 2, "concat1024_nll_position_interpolation_x2", stretched_blocks, 1e-3);
}

TEST(ModelGolden, LongTextInDouble) { expect_long_losses(exact, 1, "concat1024_nll_rope", rope_blocks, 1e-6); }

TEST(ModelGolden, StretchedLongTextInDouble) {
  expect_long_losses(exact, 2, "concat1024_nll_position_interpolation_x2", stretched_blocks, 1e-6);
}

}  // namespace
}  // namespace capstan::framework
