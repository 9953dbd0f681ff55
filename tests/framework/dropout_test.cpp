// Dropout in the whole model: masks are a function of sequence, layer, site and place, so they are the same on any
// ranks, under any schedule and under recompute; and gradients go through them.

#include "framework/dropout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/framework/runs.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace capstan::tests {
namespace {

using framework::Keep;
using kernels::Device;
using kernels::DType;
using kernels::Tensor;

const std::vector<TinyCase> cases{{"rope"},
                                  {"rope+cope"},
                                  {"rope+hierarchical_cope"},
                                  {"forget"},
                                  {"tape"},
                                  {"cope", post_bias_gelu},
                                  {"tape", {"post", "mlp", "geglu"}}};

/// Two packed sequences.
ModelRun dropped_run(const TinyCase& of, Device device, const framework::Dropout& dropout = {0.2, 0.15, {11, 12}}) {
  ModelRun run{.sequences = 2, .documents = {19, 4}};
  run.shape.kind = of.kind;
  run.shape.form = of.form;
  run.shape.layers = 3;  // TAPE: of the first, the last and another
  run.shape.device = device;
  run.shape.type = device == Device::ref ? DType::f64 : DType::f32;
  run.set_batch = [dropout](framework::Batch& batch) { batch.dropout = dropout; };
  return run;
}

ModelResult alone(const ModelRun& run) { return run_model(*parallel::make_self_communicator(), run); }

/// Both sequences of the same tokens.
ModelRun twins(const framework::Dropout& dropout) {
  ModelRun run = dropped_run({"rope+cope"}, Device::cpu, dropout);
  run.set_batch = [dropout](framework::Batch& batch) {
    batch.dropout = dropout;
    for (const Tensor* x : {&batch.tokens, &batch.targets}) x->view()[1].copy_from(x->view()[0]);
  };
  return run;
}

class DropoutOf : public testing::TestWithParam<TinyCase> {};

TEST_P(DropoutOf, HasTheSameMasksOnAnyRanks) {
  const ModelResult f32 = alone(dropped_run(GetParam(), Device::cpu)),
                    f64 = alone(dropped_run(GetParam(), Device::ref));
  ASSERT_GT(relative_difference(alone(dropped_run(GetParam(), Device::ref, {})).nll, f64.nll), 1e-2)
      << "nothing is dropped";
  for_rank_counts({1, 2, 3, 4, 8}, [&](parallel::Communicator& comm) {
    for (const framework::GridConfig& grid : ordered_grids(comm.size())) {
      SCOPED_TRACE(grid.schedule);
      ModelRun run = dropped_run(GetParam(), Device::cpu);
      run.grid = grid;
      run.backward = false;
      EXPECT_EQ(run_model(comm, run).nll, f32.nll);
      run = dropped_run(GetParam(), Device::ref);
      run.grid = grid;
      const ModelResult got = run_model(comm, run);
      EXPECT_LE(relative_difference(got.input_gradient, f64.input_gradient), 1e-12);
      const NamedDifference worst = worst_difference(got.gradients, f64.gradients);
      EXPECT_LE(worst.difference, 1e-11) << worst.name;
    }
  });
}

TEST_P(DropoutOf, HasTheSameMasksUnderRecompute) {
  for (const Device device : {Device::ref, Device::cpu})
    for_rank_counts({1, 3}, [&](parallel::Communicator& comm) {
      ModelRun run = dropped_run(GetParam(), device);
      run.keep = Keep::everything;
      const ModelResult kept = run_model(comm, run);
      for (const Keep keep : {Keep::ring, Keep::inputs}) {
        run.keep = keep;
        const ModelResult again = run_model(comm, run);
        EXPECT_EQ(again.nll, kept.nll);
        EXPECT_EQ(again.input_gradient, kept.input_gradient);
        EXPECT_EQ(unequal_names(again.gradients, kept.gradients), std::vector<std::string>{});
      }
    });
}

/// Every parameter in one random direction, against central differences, as in model_gradient_test.cpp; but a direction
/// moves every position, so that at its h some cross an integer, where CoPE has a kink: a tenth of h, so ten times the
/// rounding.
TEST_P(DropoutOf, HasGradientsThatAgreeWithFiniteDifferences) {
  const ModelRun run = dropped_run(GetParam(), Device::ref);
  const ModelResult at = alone(run);
  for (const auto& [name, gradient] : at.gradients) {
    const auto loss_along = [&, name = name](double step) {
      ModelRun moved = run;
      moved.backward = false;
      moved.set_model = [&](framework::Model& model) {
        const framework::Parameter& p = *model.parameters().find(name);
        for (std::int64_t n = 0; n < p.value.elements(); ++n)
          p.value.as<double>()[n] += step * normal(77, std::uint64_t(n));
      };
      return alone(moved).loss();
    };
    double along = 0, largest = 0;
    for (std::size_t n = 0; n < gradient.size(); ++n) {
      along += gradient[n] * normal(77, n);
      largest = std::max(largest, std::abs(gradient[n]));
    }
    EXPECT_GT(largest, 0) << name;
    constexpr double h = 1e-7;
    EXPECT_NEAR(along, (loss_along(h) - loss_along(-h)) / (2 * h),
                1e-6 * largest * std::sqrt(double(gradient.size())) + 2e-6)
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, DropoutOf, testing::ValuesIn(cases),
                         [](const auto& each) { return each.param.text(); });

TEST(DropoutDraws, MakeTheMasksOfTheirSequence) {
  const auto half = [](const ModelResult& result, std::ptrdiff_t b) {
    return Numbers(result.nll.begin() + b * 45, result.nll.begin() + (b + 1) * 45);
  };
  const ModelResult a = alone(twins({0.2, 0.15, {11, 12}})), b = alone(twins({0.2, 0.15, {12, 11}})),
                    c = alone(twins({0.2, 0.15, {11, 11}}));
  EXPECT_NE(half(a, 0), half(a, 1)) << "the same tokens, other draws";
  EXPECT_EQ(half(a, 0), half(b, 1)) << "a sequence's place in the batch does not matter";
  EXPECT_EQ(half(a, 1), half(b, 0));
  EXPECT_EQ(half(c, 0), half(c, 1));
  EXPECT_EQ(half(c, 0), half(a, 0));
  // Each rate alone, too
  for (const auto& [rate, attention_rate] : {std::pair{0.2, 0.0}, {0.0, 0.15}}) {
    const ModelResult one = alone(twins({rate, attention_rate, {11, 12}}));
    EXPECT_NE(half(one, 0), half(one, 1));
    EXPECT_NE(one.nll, a.nll);
  }
}

TEST(DropoutDraws, WithoutARateAreNothing) {
  const ModelResult none = alone(dropped_run({"rope+cope"}, Device::cpu, {}));
  const ModelResult drawn = alone(dropped_run({"rope+cope"}, Device::cpu, {0, 0, {11, 12}}));
  EXPECT_EQ(drawn.nll, none.nll);
  EXPECT_EQ(unequal_names(drawn.gradients, none.gradients), std::vector<std::string>{});
}

/// A count of n entries that are each kept with probability p lies within five standard deviations of n p.
void expect_share(double count, double n, double p) { EXPECT_NEAR(count / n, p, 5 * std::sqrt(p * (1 - p) / n)); }

TEST(DropoutSites, KeepTheirShareEachByItself) {
  constexpr std::int64_t length = 100, channels = 50;
  constexpr double rate = 0.3;
  const Tensor index({2, length}, DType::i64, Device::cpu);
  for (std::int64_t n = 0; n < 2 * length; ++n) index.as<std::int64_t>()[n] = n % length;
  std::vector<Numbers> masks;
  std::set<std::uint64_t> seeds;
  for (const std::uint64_t draw : {3, 4})
    for (const int layer : {0, 1})
      for (const char* site : {"embedding", "attention", "mlp", "weights"}) {
        seeds.insert(framework::dropout_seed(draw, layer, site));
        const Tensor x = tensor_of({2 * length, channels}, DType::f32, Device::cpu, Numbers(2 * length * channels, 1));
        framework::drop(x, index, {rate, 0, {draw, draw + 10}}, layer, site);
        masks.push_back(values_of(x));
      }
  EXPECT_EQ(seeds.size(), masks.size());
  constexpr double n = 2 * length * channels;
  for (std::size_t a = 0; a < masks.size(); ++a) {
    double kept = 0;
    for (const double value : masks[a]) kept += value > 0;
    expect_share(kept, n, 1 - rate);
    for (std::size_t b = 0; b < a; ++b) {
      double both = 0;
      for (std::size_t at = 0; at < masks[a].size(); ++at) both += masks[a][at] > 0 && masks[b][at] > 0;
      expect_share(both, n, (1 - rate) * (1 - rate));
    }
  }
}

/// Equal logits and values of 1: a row of n keys gives (kept keys) / n / (1 - rate). A row's sum of weights is of all
/// keys, so LSE is ln n, and the mean over all rows is 1 within five standard deviations.
TEST(DropoutOfWeights, KeepsItsShareAndTheirSum) {
  constexpr double rate = 0.25;
  RingRun run{.tokens = 150};
  run.settings.tile = 16;
  run.settings.dropout.rate = rate;
  run.dropout_seeds = {99};
  add_random(run, DType::f64, Device::ref);
  for (const char* name : {"q", "k"}) run.x[name].view().fill_zero();
  std::fill_n(run.x["v"].as<double>(), run.x["v"].view().elements(), 1.0);
  const RingResult result = run_ring(3, run);
  const Numbers& o = result.rows.at("o");
  double kept = 0, pairs = 0;
  for (std::int64_t t = 0; t < run.tokens; ++t)
    for (std::int64_t h = 0; h < ring_heads; ++h) {
      const std::size_t row = std::size_t(t * ring_heads + h);
      const double count = o[row * ring_depth] * double(t + 1) * (1 - rate);
      EXPECT_NEAR(count, std::round(count), 1e-9);
      EXPECT_NEAR(result.rows.at("lse")[row], std::log(double(t + 1)), 1e-12);
      kept += count;
      pairs += double(t + 1);
    }
  expect_share(kept, pairs, 1 - rate);
}

}  // namespace
}  // namespace capstan::tests
